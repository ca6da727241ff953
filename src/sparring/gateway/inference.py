"""Acting on the server: the newest champion chooses, for many callers in one run of the model.

A search takes one thread of its own for as long as its caller asked, which counts from the moment when it asked: under
load a search becomes shorter, and no caller waits longer.

While one batch runs on a thread, the requests that arrive meanwhile form the next. A single caller never waits, and
under load batches grow up to MAX_BATCH. A new champion is noticed within LOOK_EVERY_S, without a restart.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from sparring.errors import ChunkRefused, Missing, ModelDamaged, Refused, SparringError
from sparring.games.chunk_checks import MAX_STATE_BYTES
from sparring.games.protocol import Game
from sparring.games.spec import GameSpec, SeatSpec
from sparring.gateway.http_errors import ServerBusy
from sparring.nets.chooser import ActRequest, Chooser, Decision, uniform
from sparring.nets.shapes import state_width
from sparring.nets.tree_search import TreeSearch
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array, Column
from sparring.wire.ids import GameId, ModelId
from sparring.wire.strengths import Strengths, StrengthStep, no_style, verify_strengths

log = logging.getLogger(__name__)

Place = TypeVar("Place")
Found = TypeVar("Found")

MAX_BATCH = 64
MAX_WAITING = 1_024  # callers per model; more are sent away with 503
MODELS = 24  # loaded at once, a ladder of strengths has up to ten; the least recently used is dropped first
MAX_LOADING = 4  # models that callers named and that wait to be loaded
LOOK_EVERY_S = 1.0
SEARCHES, MAX_SEARCHING = 2, 32  # at once, and together with those that wait; more are sent away with 503


class InferenceServer:
    """The models of one registry. Called on the event loop; `close` ends its threads."""

    def __init__(self, registry: Registry, open_game: Callable[[GameSpec, int], Game]) -> None:
        """`open_game` gives n games of a spec, for searches."""
        self._registry, self._open_game = registry, open_game
        self._searchers = ThreadPoolExecutor(SEARCHES, thread_name_prefix="search")
        self._trees: dict[str, TreeSearch] = {}  # by the spec's hash
        self._searching = 0
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="inference")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="models")  # models in use do not wait for others
        self._loading: dict[ModelId, asyncio.Future[Chooser]] = {}
        self._champions = _Newest[tuple[GameId, str, int], ModelId](self._threads)
        self._ladders = _Newest[tuple[GameId, str], Strengths](self._threads)
        self._said = set[ModelId]()  # of which the log says that they are sold, and do not load
        self._models: OrderedDict[ModelId, _Batcher] = OrderedDict()
        self._rng = np.random.default_rng()

    async def decide(self, spec: GameSpec, seat: int, request: ActRequest, model: ModelId | None = None) -> Decision:
        """The action of `model`, by default the champion's; a random one (model None) where there is no champion.
        Refused where the game sells no such style."""
        strength = 1.0 if request.strength is None else request.strength
        if model is None and (strength < 1.0 or request.style is not None):
            ladder = await self._ladders.get((spec.id, spec.version), lambda: self._current_ladder(spec))
            if ladder is not None:
                step = ladder.step(strength, request.style)
                try:
                    return await self._by_ladder(step, spec, seat, request)
                except (Missing, ModelDamaged) as error:  # the champion plays, weakened by random moves
                    if step.model not in self._said:
                        log.warning("a step of the strengths of %s is not used: %s", spec.id, error)
                    self._said.add(step.model)
            elif request.style is not None:
                raise no_style(spec.id, request.style, [])
        place = (spec.id, spec.version, seat)
        chosen = model or await self._champions.get(place, lambda: self._current_champion(*place))
        if chosen is None:
            _check_state(request.state, 0)
            return uniform(spec.seats[seat], request.legal, self._rng)
        return await self._decide(chosen, spec, seat, request)

    async def _by_ladder(self, step: StrengthStep, spec: GameSpec, seat: int, request: ActRequest) -> Decision:
        """What that step of the ladder does."""
        if step.share == 0.0:
            return uniform(spec.seats[seat], request.legal, self._rng)
        return await self._decide(step.model, spec, seat, replace(request, strength=step.share))

    async def _decide(self, chosen: ModelId, spec: GameSpec, seat: int, request: ActRequest) -> Decision:
        batcher = self._models.get(chosen) or await self._load(chosen, spec)
        _check_spec(chosen, batcher.chooser.spec_hash, spec)
        if batcher.chooser.kind and seat not in batcher.chooser.kind:
            do = "Name the model that GET /v1/games/{game}/champion gives for this seat"
            wrong, kind = "the model plays other seats", list(batcher.chooser.kind)
            raise Refused(wrong, where=f"model {chosen[:12]}", do=do, field="seat", value=seat, limit=kind)
        _check_state(request.state, batcher.chooser.state_numbers)
        self._models.move_to_end(chosen)
        if request.search_ms:
            return await self._search(batcher.chooser, spec, seat, request)
        return await batcher.decide(spec.seats[seat], request)

    def close(self) -> None:
        for threads in (self._loader, self._threads, self._searchers):
            threads.shutdown(wait=True, cancel_futures=True)

    async def _search(self, chooser: Chooser, spec: GameSpec, seat: int, request: ActRequest) -> Decision:
        if self._searching >= MAX_SEARCHING:
            raise ServerBusy("too many searches wait", where="act", do="Ask again later", limit=MAX_SEARCHING)
        deadline_s, loop = time.monotonic() + (request.search_ms or 0.0) / 1000, asyncio.get_running_loop()

        def search() -> Decision:
            tree, opening_s = self._trees.get(spec.hash), 0.0
            if tree is None:
                began_s = time.monotonic()
                tree = self._trees[spec.hash] = TreeSearch(lambda n: self._open_game(spec, n), spec)
                opening_s = time.monotonic() - began_s  # compiles, once: the first search has its time all the same
            return chooser.search(tree, seat, request, np.random.default_rng(), deadline_s + opening_s)

        self._searching += 1
        try:
            return await loop.run_in_executor(self._searchers, search)
        finally:
            self._searching -= 1

    def _current_ladder(self, spec: GameSpec) -> Strengths | None:
        try:
            signed = self._registry.strengths(spec.id, spec.version)
            return None if signed is None else verify_strengths(signed, self._registry.trust, spec)
        except ModelDamaged as error:  # weaker play goes on with random moves
            log.warning("no ladder is used: %s", error)
            return None

    def _current_champion(self, game: GameId, version: str, seat: int) -> ModelId | None:
        signed = self._registry.champion(game, version, seat)
        return None if signed is None else verify(signed, self._registry.trust).model

    async def _load(self, model: ModelId, spec: GameSpec) -> "_Batcher":
        """Once for all who wait for it. A model of another spec is refused before it is read; where too many that
        callers named wait, ServerBusy."""
        champions = {*self._champions.all()} | self._sold()
        loading = self._loading.get(model)
        if loading is None:
            if model not in champions and len(self._loading) >= MAX_LOADING:
                raise ServerBusy("other models are being loaded", where="act", do="Ask again later", limit=MAX_LOADING)
            loop = asyncio.get_running_loop()
            loading = self._loading[model] = loop.run_in_executor(self._loader, self._read, model, spec)
            loading.add_done_callback(lambda _: self._loading.pop(model, None))
        chooser = await asyncio.shield(loading)
        if model not in self._models:
            self._models[model] = _Batcher(chooser, self._threads)
            while len(self._models) > MODELS:
                del self._models[next((one for one in self._models if one not in champions), next(iter(self._models)))]
        return self._models[model]

    def _sold(self) -> set[ModelId]:
        """The models of all ladders, which nobody names but the operator."""
        return {model for ladder in self._ladders.all() for model in ladder.models}

    def _read(self, model: ModelId, spec: GameSpec) -> Chooser:
        _check_spec(model, self._registry.card(model).spec, spec)
        return Chooser(self._registry.fetch(model))


class _Newest(Generic[Place, Found]):
    """What the registry holds at each place, looked up at most once in LOOK_EVERY_S however many callers ask.

    All of them wait for the first answer. Later only one waits, and the others get the answer before.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._found: dict[Place, tuple[float, Found | None]] = {}  # when it was looked for, and what was there
        self._first: dict[Place, asyncio.Future[Found | None]] = {}

    async def get(self, place: Place, look: Callable[[], Found | None]) -> Found | None:
        now_s, loop = time.monotonic(), asyncio.get_running_loop()
        if place not in self._found:
            if place not in self._first:
                self._first[place] = loop.run_in_executor(self._threads, look)
                self._first[place].add_done_callback(lambda _: self._first.pop(place, None))
            found = await asyncio.shield(self._first[place])
            self._found.setdefault(place, (now_s, found))
            return found
        looked_s, found = self._found[place]
        if now_s - looked_s >= LOOK_EVERY_S:
            self._found[place] = now_s, found
            found = await loop.run_in_executor(self._threads, look)
            self._found[place] = now_s, found
        return found

    def all(self) -> list[Found]:
        return [found for _, found in self._found.values() if found is not None]


def _check_spec(model: ModelId, spec_hash: str, spec: GameSpec) -> None:
    if spec_hash != spec.hash:
        raise Refused(
            "the model plays another game or spec",
            where=f"model {model[:12]}",
            do="Name one that GET /v1/games/{game}/champion gives",
            field="model",
            value=spec_hash,
            limit=spec.hash,
        )


class StateSizes:
    """How many bytes of recurrent state a chunk may have. Called from any thread, and asks the registry."""

    def __init__(self, registry: Registry, unknown_bytes: int) -> None:
        """`unknown_bytes`: where no model acted, or one that the registry does not have."""
        self._registry, self._unknown_bytes = registry, unknown_bytes
        self._known: dict[str, int] = {}  # by model; an id never means another card
        self._asking = threading.Lock()  # callers that name models which there are not take one thread at most

    def limit(self, actor: str, columns: Sequence[Column]) -> int:
        """The most for a chunk of that actor with those columns."""
        kind, _, model = actor.partition(":")
        if kind != "model" or not any(column.name.startswith("state/") for column in columns):
            return self._unknown_bytes
        if model not in self._known:
            with self._asking:
                try:
                    width = state_width(self._registry.card(ModelId(model)).network)
                    self._known[model] = min(4 * width, MAX_STATE_BYTES)  # float32; a sink takes no more either
                except SparringError:
                    return self._unknown_bytes
        return self._known[model]


class _Batcher:
    """Callers of one model, in batches."""

    def __init__(self, chooser: Chooser, threads: ThreadPoolExecutor) -> None:
        self.chooser, self._threads = chooser, threads
        self._rng = np.random.default_rng()
        self._waiting: deque[tuple[SeatSpec, ActRequest, asyncio.Future[Decision]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def decide(self, seat: SeatSpec, request: ActRequest) -> Decision:
        if len(self._waiting) >= MAX_WAITING:
            wrong = "too many callers wait for this model"
            raise ServerBusy(wrong, where="act", do="Ask again later", limit=MAX_WAITING)
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((seat, request, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                rows = [(seat, request) for seat, request, _ in batch]
                try:
                    decisions = await loop.run_in_executor(self._threads, self.chooser.decide_batch, rows, self._rng)
                except Exception as error:  # noqa: BLE001  (the runtime's own, or a shutdown: each caller gets it)
                    if not isinstance(error, SparringError):
                        wrong, where = f"the model did not run: {type(error).__name__}", f"model {self.chooser.id[:12]}"
                        error = Refused(wrong, where=where, do="Send its spec's views")
                    for _, _, answer in batch:
                        if not answer.done():
                            answer.set_exception(error)
                    continue
                for (_, _, answer), decision in zip(batch, decisions, strict=True):
                    if not answer.done():
                        answer.set_result(decision)
        finally:
            self._running = None


def _check_state(state: Array | None, numbers: int) -> None:
    if state is not None and state.shape != (numbers,):
        wrong = "the state is not this model's"
        do = "Send what its last answer gave, with that answer's model; leave both out where an episode begins"
        raise ChunkRefused(wrong, where="act", do=do, field="state", value=list(state.shape), limit=[numbers])
