"""The opponents of a learner in a league, as its actors have them.

For each game a member is drawn by the chances that the league gives; what the game came to is counted. A thread
exchanges both with the league every few seconds: it hands counts over until the league has acknowledged them, takes
new chances, and loads models that are met from the pool. Actors never wait for it, but for the first answer.
"""

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.acting.opponents import FIRST_SCRIPT, SELF, Opponents
from sparring.errors import Missing, SparringError
from sparring.games.scripts import script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.league.service import SERVICE as LEAGUE
from sparring.nets.forward import Forward, forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.nets.shapes import state_width
from sparring.pool import open_pool
from sparring.pool.protocol import Pool
from sparring.registry import open_registry
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import Model
from sparring.wire.network import NetworkSpec

log = logging.getLogger(__name__)

EXCHANGE_S = 2.0
FIRST_S = 60.0  # for the first answer: the league may still be starting
Counts = list[int]  # wins, draws, losses


class LeagueOpponents(Opponents):
    """The members of a league, and other learners' newest weights, by name."""

    lasting = False

    def __init__(self, spec: GameSpec, network: NetworkSpec, learner: str) -> None:
        """`learner`: the discovery URL of the league's services, and behind # "NAME/GENERATION" of the learner that
        plays with `network`. Waits until the league has answered once."""
        super().__init__(network, 0.0, [script_for(spec, name) for name in scripts_for(spec.id)])
        url, _, learner = learner.rpartition("#")
        self._name, _, generation = learner.partition("/")
        self._generation, self._spec = int(generation), spec
        self._places: dict[str, int] = {}  # of opponents in `forwards`
        self._loaded: dict[str, str] = {}  # the model in each of those places, by opponent
        self._codes, self._chances = np.array([SELF], np.int64), np.ones(1)
        self._counts: dict[str, Counts] = {}
        self._names: dict[int, str] = {}
        self._sending: list[list[Any]] = []  # handed over and not acknowledged
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._solver = Solver(self._opened.enter_context(closing(open_discovery(url))))
        self._opened.enter_context(self._solver)
        self._pool: Pool | None = None
        self._closing = threading.Event()
        try:
            self._exchange_first()
        except BaseException:
            self._opened.close()
            raise
        self._thread = threading.Thread(target=self._run, name="league", daemon=True)
        self._thread.start()

    @property
    def any(self) -> bool:
        """Whether there is an opponent other than the learner itself; once there was, there is."""
        return bool(self._names)

    def draw(self, games: int, rng: Generator) -> Array:
        """int64 [games]: the opponent of each new game: SELF, a place in `forwards`, or a script."""
        with self._lock:
            codes, chances = self._codes, self._chances
        return codes[rng.choice(len(codes), games, p=chances)]

    def note(self, rivals: Array, scores: Array) -> None:
        """Games that ended: who was met in each, and what the learner scored: 1, 0.5 or 0."""
        with self._lock:
            for rival, score in zip(rivals.tolist(), scores.tolist(), strict=True):
                if (name := self._names.get(rival)) is not None:
                    self._counts.setdefault(name, [0, 0, 0])[round(2 * (1.0 - score))] += 1

    def close(self) -> None:
        """Hand over the last results, if the league answers at once."""
        self._closing.set()
        self._thread.join()
        self._opened.close()

    def _exchange_first(self) -> None:
        until = time.monotonic() + FIRST_S
        while True:
            try:
                return self._exchange()
            except SparringError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._closing.wait(EXCHANGE_S)
            try:
                self._exchange()
            except SparringError as error:  # what was not acknowledged is handed over again
                log.info(f"the league does not answer: {error}")

    def _exchange(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        self._sending += [[uuid.uuid4().hex, name, *count] for name, count in counts.items()]
        said = self._solver.retrieve(LEAGUE, "exchange", self._name, self._generation, self._sending)
        self._sending = []
        if self._pool is None:
            registry = self._opened.enter_context(open_registry(said["registry"]))
            self._pool = self._opened.enter_context(open_pool(said["pool"], registry, self._solver))
        self._take(said["opponents"], self._pool)

    def _take(self, opponents: Sequence[Sequence[Any]], pool: Pool) -> None:
        """Meet these from now on; one whose model cannot be had is left out until it can."""
        codes, chances = [], []
        for name, player, chance in opponents:
            if (code := self._code(name, player, pool)) is not None and chance > 0:
                codes.append(code)
                chances.append(chance)
        if not codes:
            return
        with self._lock:
            self._codes, total = np.array(codes, np.int64), np.array(chances)
            self._chances = total / total.sum()

    def _code(self, name: str, player: str, pool: Pool) -> int | None:
        if not player:
            return SELF
        kind, _, script = player.partition(":")
        if kind == "script":
            code = FIRST_SCRIPT - [one.name for one in self.scripts].index(script)
        else:
            place = self._places.get(name)
            if place is None or self._loaded[name] != player:
                try:
                    model = self._fitting(pool.get(ModelId(player)))
                except SparringError as error:
                    log.warning(f"{name} is not met: {error}")
                    return place
                place = self._put(name, place, forward_without_torch(model.card.network, read_weights(model)))
                self._loaded[name] = player
            code = place
        self._names[code] = name
        return code

    def _fitting(self, model: Model) -> Model:
        """The model, if it can play in this actor's games."""
        card, where = model.card, f"model {model.id[:12]}"
        if card.spec != self._spec.hash:
            wrong = f"it was made for spec {card.spec[:12]} of {card.game}, and this is {self._spec.hash[:12]}"
            raise Missing(wrong, where=where, do="Remove it from the league, or train one for this version")
        if state_width(card.network) != state_width(self._network):
            wrong = "its memory has another size than the learner's, and actors keep one state for each game"
            raise Missing(wrong, where=where, do="Give all learners of the league the same `memory`")
        return model

    def _put(self, name: str, place: int | None, forward: Forward) -> int:
        """A learner's newer weights take the place of its older ones, also in games under way; others get a new one,
        or that of a member that is met no more."""
        place = self._free_place() if place is None else place
        self.forwards[place : place + 1] = [forward]
        self._places[name] = place
        return place

    def _free_place(self) -> int:
        met = set(self._codes.tolist()) | set([] if self.playing is None else np.unique(self.playing).tolist())
        for name, place in self._places.items():
            if place not in met:
                del self._places[name], self._loaded[name]
                return place
        return len(self.forwards)
