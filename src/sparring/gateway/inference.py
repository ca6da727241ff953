"""Acting on the server: the newest champion chooses, for many callers in one run of the model.

While one batch runs on a thread, the requests that arrive meanwhile form the next. A single caller never waits, and
under load batches grow up to MAX_BATCH. A new champion is noticed within LOOK_EVERY_S, without a restart.
"""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparring.errors import ChunkRefused, Refused, SparringError
from sparring.games.chunk_checks import MAX_STATE_BYTES
from sparring.games.spec import GameSpec, SeatSpec
from sparring.gateway.http_errors import ServerBusy
from sparring.nets.chooser import ActRequest, Chooser, Decision, uniform
from sparring.nets.shapes import state_width
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array, Column
from sparring.wire.ids import GameId, ModelId

MAX_BATCH = 64
MAX_WAITING = 1_024  # callers per model; more are sent away with 503
MODELS = 8  # loaded at once; the least recently used is dropped first, and champions last
MAX_LOADING = 4  # models that callers named and that wait to be loaded
LOOK_EVERY_S = 1.0


class InferenceServer:
    """The models of one registry. Called on the event loop; `close` ends its threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="inference")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="models")  # models in use do not wait for others
        self._loading: dict[ModelId, asyncio.Future[Chooser]] = {}
        self._champions: dict[tuple[str, str, int], tuple[float, ModelId | None]] = {}
        self._models: OrderedDict[ModelId, _Batcher] = OrderedDict()
        self._rng = np.random.default_rng()

    async def decide(self, spec: GameSpec, seat: int, request: ActRequest, model: ModelId | None = None) -> Decision:
        """The action of `model`, by default the champion's; a random one (model None) where there is no champion."""
        chosen = model or await self._champion(spec, seat)
        if chosen is None:
            _check_state(request.state, 0)
            return uniform(spec.seats[seat], request.legal, self._rng)
        batcher = self._models.get(chosen) or await self._load(chosen, spec)
        _check_spec(chosen, batcher.chooser.spec_hash, spec)
        _check_state(request.state, batcher.chooser.state_numbers)
        self._models.move_to_end(chosen)
        return await batcher.decide(spec.seats[seat], request)

    def close(self) -> None:
        for threads in (self._loader, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)

    async def _champion(self, spec: GameSpec, seat: int) -> ModelId | None:
        place = (spec.id, spec.version, seat)
        looked_s, model = self._champions.get(place, (-LOOK_EVERY_S, None))
        now_s = time.monotonic()
        if now_s - looked_s >= LOOK_EVERY_S:
            # Set before asking, so that a hundred callers in that second ask the registry once; only the first waits.
            self._champions[place] = now_s, model
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._threads, self._current_champion, spec.id, spec.version, seat)
            self._champions[place] = now_s, model
        return model

    def _current_champion(self, game: GameId, version: str, seat: int) -> ModelId | None:
        signed = self._registry.champion(game, version, seat)
        return None if signed is None else verify(signed, self._registry.trust).model

    async def _load(self, model: ModelId, spec: GameSpec) -> "_Batcher":
        """Once for all who wait for it. A model of another spec is refused before it is read; where too many that
        callers named wait, ServerBusy."""
        champions = {one for _, one in self._champions.values()}
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

    def _read(self, model: ModelId, spec: GameSpec) -> Chooser:
        _check_spec(model, self._registry.card(model).spec, spec)
        return Chooser(self._registry.fetch(model))


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
