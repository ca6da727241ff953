"""A game's connection: opens episodes, and owns the threads that record, send and look for models."""

import atexit
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np

from sparring.client.episode import Episode, VectorRecorder
from sparring.client.file_lock import locked, write_whole
from sparring.client.gateway import Gateway
from sparring.client.models import Models
from sparring.client.sender import Recorder, Sender, StreamUploads, Uploads
from sparring.client.settings import Settings, SettingsKeys, read_settings
from sparring.client.spool import Spool
from sparring.client.statistics import Counters, Statistics
from sparring.closable import Closable
from sparring.errors import ConfigError, Missing, Refused, Unreachable
from sparring.games.catalogue import open_game, spec_of
from sparring.games.spec import GameSpec, SeatSpec, checked, read
from sparring.games.step_buffer import MemoryBudget, StepBuffer, StepLayout, refused
from sparring.nets.chooser import RANDOM_ACTOR, ActRequest, Chooser, Decision, LadderChooser, uniform
from sparring.nets.tree_search import TreeSearch
from sparring.stream import BACKENDS
from sparring.wire.chunk import Array, Source
from sparring.wire.ids import EpisodeId, ModelId, PlayerId, asked_for, is_actor, is_episode, new_episode

STOP_S = 1.0  # a request under way may finish within this; after it the thread is left to its timeout
REMEMBERED_RATES = 4096  # of episodes opened lately, so that their other seats get the same

log = logging.getLogger("sparring.client")


def connect(url: str, game: str, player: str | None = None, **settings: Unpack[SettingsKeys]) -> "Connection":
    """A connection to the gateway at `url` for one game and, where it is known, one player.

    Returns without waiting for the gateway, unless the game's spec must be fetched from it, or `wait_for_model_s` says
    so. A trusted game server may give a stream, kinesis://…, and a pseudonym instead, see docs/stream.md; that is
    opened first. See docs/client.md for every setting; an unknown one is refused. Close it, or use it as a block.
    """
    return Connection(url, game, player, read_settings(dict(settings)))


class Connection(Closable):
    """Made by `connect`. Episodes may be recorded from several threads, each episode from one at a time."""

    def __init__(self, url: str, game: str, player: str | None, settings: Settings) -> None:
        self._settings, self._player, self._counters = settings, player, Counters()
        self._style = settings.style  # None once the gateway said that there is no such style
        self._rates: OrderedDict[EpisodeId, float] = OrderedDict()
        self._groups: dict[str, VectorRecorder] = {}
        self._open: dict[int, Episode] = {}
        self._tree: TreeSearch | None = None  # where act() was asked to look ahead
        self._rng = np.random.default_rng(settings.seed)
        self._budget = MemoryBudget(settings.memory_bytes)
        with ExitStack() as begun:  # closes what was opened where a later part fails
            self._uploads, self._gateway = _reached(url, game, player, settings)
            begun.callback(self._uploads.close)
            folder = settings.root / _name(self._uploads.url, game)
            self.spec: GameSpec = _spec_for(game, settings.spec, self._gateway, folder / "spec.json")
            self._layouts = [StepLayout(self.spec, seat) for seat in range(len(self.spec.seats))]
            self._spool = Spool(folder / "spool" / _name(player or ""), settings.spool_bytes, self._counters)
            begun.callback(self._spool.close)
            client = _client_id(settings.root)
            begun.pop_all()
        self._sender = Sender(self._uploads, self._spool, self._counters, self._rng.spawn(1)[0], settings.retry_most_s)
        self._recorder = Recorder(self._spool, self._counters, settings.flush_every_s, self._sender.wake)
        sold = (settings.strength, settings.style)
        self._models = Models(folder, self.spec, client, settings.trust, self._counters, *sold)
        if self._gateway is not None and settings.act == "local":
            self._models.start(self._gateway, settings.poll_every_s, self._rng.spawn(1)[0])
            if settings.wait_for_model_s and not self._models.complete:
                self._models.wait(settings.wait_for_model_s)
        self._closed = False
        atexit.register(self.close)

    def episode(
        self,
        seat: int = 0,
        *,
        episode: str | None = None,
        seed: int | None = None,
        actor: str = "person",
        source: Source = "play",
        sample_rate: float | None = None,
    ) -> Episode:
        """Open an episode, or with `episode` one more seat of it.

        `seed` is what the game was started from, where it can be run again. `sample_rate` is needed only for an
        episode that another process opened: the rate is the opener's, for all seats.
        """
        layout = self.layout(seat)
        if self._closed:
            raise Refused("the connection is closed", where="episode", do="Open episodes before close()")
        if not is_actor(actor):
            raise refused("actor", f"{actor!r} is no actor", actor, "person, script:NAME or model:SHA-256")
        if episode is not None and not is_episode(episode):
            raise refused("episode", f"{episode!r} is no episode", episode, "a UUIDv7 in lower case")
        name = new_episode(self.now_ms()) if episode is None else EpisodeId(episode)
        rate = self._rates.get(name, self.sample_rate) if sample_rate is None else sample_rate
        self._rates[name] = rate
        while len(self._rates) > REMEMBERED_RATES:
            self._rates.popitem(last=False)
        player = None if self._player is None else PlayerId(self._player)
        header = layout.header(name, source, player=player, sample_rate=rate, seed=seed)
        chooser = self._models.chooser(seat)
        buffer = None
        self._counters.add(episodes=1)
        if self._sender.gone or not asked_for(name, rate):
            self._counters.add(episodes_not_asked=1)
        else:
            buffer = StepBuffer(header, layout, self._budget, self._recorder.wake)
            self._recorder.watch(buffer)
        made = Episode(self, layout, header, actor, buffer, chooser)
        self._open[id(made)] = made
        return made

    def record_many(
        self,
        columns: dict[str, Array],
        *,
        seat: int = 0,
        actor: str = "person",
        source: Source = "play",
        group: str = "",
    ) -> None:
        """Many steps of n games at once, each column [steps, n, …]; see docs/client.md and `VectorRecorder.record`."""
        recorder = self._groups.setdefault(group, VectorRecorder(self))
        recorder.record(columns, seat=seat, actor=actor, source=source)

    def decide(
        self,
        index: int,
        seat: SeatSpec,
        chooser: Chooser | LadderChooser | None,
        asked: ActRequest,
        last: Decision | None,
    ) -> Decision:
        """The action for one observation, for Episode.act: by the gateway, by `chooser`, or at random without either.
        `last` is the episode's last decision by a recurrent model, whose state goes on."""
        asked = replace(asked, strength=self._settings.strength, style=self._style)
        if self._gateway is not None and self._settings.act == "server":
            state, model = (None, None) if last is None else (last.state_after, last.model)
            if asked.game_state is not None:
                do = 'Leave state out, or act with act="local"'
                raise Refused("a gateway takes no saved state", where="act", do=do, field="state")
            timeout_s = self._settings.act_timeout_s + (asked.search_ms or 0.0) / 1000
            try:
                return self._gateway.act(index, seat, replace(asked, state=state), model, timeout_s)
            except Unreachable as error:
                if asked.search_ms:  # what the model does without one is better than chance
                    self._counters.warn_once(str(error))
                    return self.decide(index, seat, chooser, replace(asked, search_ms=None), last)
                self._counters.add(act_fallbacks=1)
                self._warn_random(str(error))
                return uniform(seat, asked.legal, self._rng)
            except Refused as error:
                if self._style is None or error.field != "style":
                    raise
                self._counters.warn_once(str(error))
                self._style = None
                return self.decide(index, seat, chooser, asked, last)
        if chooser is None:
            none = f"there is no champion of {self.spec.id} {self.spec.version} yet"
            late = "the champion was not fetched yet: connect(wait_for_model_s=10) waits for it"
            alone = "models do not come by a stream, and gateway= is not given"
            absent = index in self._models.absent
            self._warn_random(alone if self._gateway is None else none if absent else late)
            return uniform(seat, asked.legal, self._rng)
        if asked.search_ms:
            if self._tree is None:
                self._tree = TreeSearch(lambda n: open_game(self.spec.id, n), self.spec)
            return chooser.search(self._tree, index, asked, self._rng, time.monotonic() + asked.search_ms / 1000)
        state = last.state_after if last is not None and last.actor == chooser.actor else None
        return chooser.decide(seat, replace(asked, state=state), self._rng)

    def ended(self, episode: Episode, buffer: StepBuffer | None) -> None:
        """Called by an episode when it is over."""
        self._open.pop(id(episode), None)
        if buffer is not None and buffer.dropped_steps:
            self._counters.add(dropped_steps=buffer.dropped_steps)

    def now_ms(self) -> int:
        """The gateway's clock as far as it is known, from which episodes are named."""
        return self._uploads.now_ms()

    @property
    def model(self) -> ModelId | None:
        """The model that a new episode of the first seat acts with."""
        chooser = self._models.chooser(0)
        return chooser.id if chooser is not None else None

    @property
    def sample_rate(self) -> float:
        """The share of episodes that the gateway asks for now."""
        return self._uploads.sample_rate

    def wait_for_model(self, timeout_s: float = 10.0) -> ModelId | None:
        """Ask for the champion now and wait for the answer; the model held then."""
        self._models.wait(timeout_s)
        return self.model

    def renew(self, token: str | None) -> None:
        """Use another token from now on, and try again at once."""
        if self._gateway is not None:  # a stream's credentials are renewed where boto3 finds them
            self._gateway.renew(token)
        self._sender.hurry()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send all that is recorded (of running episodes all but the last two steps); whether it arrived in time."""
        deadline_s = time.monotonic() + timeout_s
        if not self._recorder.flush(timeout_s):
            return False
        self._sender.hurry()
        while self._spool.waiting[0]:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.002)
        return True

    def statistics(self) -> Statistics:
        """What was done so far."""
        chunks, size = self._spool.waiting
        return replace(
            self._counters.read(),
            waiting_chunks=chunks,
            waiting_bytes=size,
            memory_bytes=self._budget.taken_bytes,
            sample_rate=self.sample_rate,
            model=self.model,
        )

    def close(self, timeout_s: float | None = None) -> None:
        """End open episodes as truncated, send what can be sent in time, and leave the rest spooled."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
        for episode in tuple(self._open.values()):
            episode.leave()
        self.flush(limit_s)
        self._recorder.stop(limit_s)
        for thread in (self._sender, self._models):
            thread.stop(0.0)  # both hear of it before either is waited for
        for thread in (self._sender, self._models):
            thread.stop(STOP_S)
        self._uploads.close()
        if self._gateway is not None:
            self._gateway.close()
        self._spool.close()

    def layout(self, seat: int) -> StepLayout:
        """The columns of that seat."""
        if not 0 <= seat < len(self._layouts):
            raise refused("seat", f"there is no seat {seat}", seat, len(self._layouts) - 1)
        return self._layouts[seat]

    def _warn_random(self, why: str) -> None:
        self._counters.warn_once(f"{why}: act() takes a random legal action, recorded as {RANDOM_ACTOR}")


class _GameAnswer(msgspec.Struct, frozen=True):
    spec: GameSpec


_read_game = msgspec.json.Decoder(_GameAnswer).decode


def _reached(url: str, game: str, player: str | None, settings: Settings) -> tuple[Uploads, Gateway | None]:
    """Where chunks go (the gateway or the stream at `url`), and the gateway that models come from, if any."""
    by_stream, where = url.partition("://")[0] in BACKENDS, "sparring.connect"
    if not by_stream and settings.gateway is not None:
        raise ConfigError("gateway= goes with a stream", where=where, do="Give its address first")
    if by_stream and settings.gateway is None and (settings.act == "server" or settings.token is not None):
        setting = 'act="server"' if settings.act == "server" else "token"
        do = "Give gateway=, the address of `spar serve`, too"
        raise ConfigError(f"{setting} is a gateway's, and a stream is none", where=where, do=do)
    if by_stream and settings.gateway is None:
        return StreamUploads(url, player), None
    gateway = Gateway(settings.gateway or url, game, settings.token, settings.timeout_s, settings.ca)
    return StreamUploads(url, player) if by_stream else gateway, gateway


def _spec_for(game: str, given: GameSpec | str | Path | None, gateway: Gateway | None, cache: Path) -> GameSpec:
    """The spec: given, built in, from the gateway (the caller waits for it), or as it was fetched last time."""
    if given is not None:
        spec = given if isinstance(given, GameSpec) else read(Path(given))
        if spec.id != game:
            raise ConfigError(f"the spec is of {spec.id!r}, not {game!r}", where="sparring.connect", do="Name one game")
        return checked(spec, "sparring.connect(spec=…)")
    try:
        return spec_of(game)
    except Missing as unknown:
        if gateway is None:
            raise
        try:
            content = gateway.spec()
            spec = checked(_read_game(content).spec, gateway.url)
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_whole(cache, content)
            return spec
        except Missing:
            raise unknown from None
        except (Unreachable, msgspec.DecodeError) as error:
            if cache.exists():
                log.warning("%s; the spec of %s is the one fetched last time", error, game)
                return _read_game(cache.read_bytes()).spec
            raise


def _name(*parts: str) -> str:
    """A folder name for any text: readable names could hold what a file system forbids."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _client_id(root: Path) -> str:
    """A random name that stays this machine's, for roll-outs by share of clients; it goes nowhere."""
    path = root / "client.json"
    with locked(root / "client.lock"):
        try:
            return str(msgspec.json.decode(path.read_bytes(), type=dict[str, Any])["client"])
        except (FileNotFoundError, KeyError, msgspec.DecodeError):
            fresh = secrets.token_hex(16)
            write_whole(path, msgspec.json.encode({"format": 1, "client": fresh}))
            return fresh
