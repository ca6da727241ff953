"""Acting on the server: the newest champion in ONNX Runtime, many callers answered by one run.

While one batch runs on a thread, whoever comes meanwhile makes up the next: alone a caller waits for
nobody, and under load batches grow by themselves, up to MAX_BATCH. A new champion is noticed within
LOOK_EVERY_S, without a restart.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.errors import ChunkRefused, ModelDamaged, Refused, SparringError
from sparring.games.spec import GameSpec, SeatSpec
from sparring.gateway.http_errors import ServerBusy
from sparring.nets.policies import choose
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import ONNX, Model

MAX_BATCH = 64
MAX_WAITING = 1_024  # callers per model; more are sent away with 503
MODELS = 8  # kept loaded; the one that was not asked for longest goes
LOOK_EVERY_S = 1.0
_STATE = "state"  # a recurrent model's one input beside what the seat sees
CHANCE = "script:random"  # who acts where there is no champion yet


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One seat's view, without a batch axis; `state` is what a recurrent model's decision before gave."""

    observation: Mapping[str, Array]
    legal: Array | None
    strength: float | None
    state: Array | None = None  # None: an episode begins


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen, how probable that was, what the model thinks it is worth, and which model that is.

    `before` and `after` are a recurrent model's memory around it: what it was given, and what its next decision is.
    """

    action: Any
    logp: float | None
    value: float | None
    model: ModelId | None
    before: Array | None = None  # float32 [numbers]
    after: Array | None = None

    @property
    def actor(self) -> str:
        return CHANCE if self.model is None else f"model:{self.model}"


class InferenceServer:
    """The models of one registry. Called on the event loop; `close` ends its threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="inference")
        self._champions: dict[tuple[str, str, int], tuple[float, ModelId | None]] = {}
        self._models: OrderedDict[ModelId, _Batcher] = OrderedDict()
        self._rng = np.random.default_rng()

    async def decide(
        self, spec: GameSpec, seat: int, asked: InferenceRequest, model: ModelId | None = None
    ) -> Decision:
        """The action of `model`, by default the champion's; by chance (model None) where there is no champion."""
        chosen = model or await self._champion(spec, seat)
        if chosen is None:
            _check_state(asked.state, 0)
            return by_chance(spec.seats[seat], asked.legal, self._rng)
        batcher = self._models.get(chosen) or await self._load(chosen)
        if batcher.card_spec != spec.hash:
            raise Refused(
                "the model plays another game or spec",
                where=f"model {chosen[:12]}",
                do="Name one that GET /v1/games/{game}/champion gives",
                field="model",
                value=batcher.card_spec,
                limit=spec.hash,
            )
        _check_state(asked.state, batcher.state_numbers)
        self._models.move_to_end(chosen)
        return await batcher.decide(spec.seats[seat], asked)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _champion(self, spec: GameSpec, seat: int) -> ModelId | None:
        place = (spec.id, spec.version, seat)
        looked_s, model = self._champions.get(place, (-LOOK_EVERY_S, None))
        now_s = time.monotonic()
        if now_s - looked_s >= LOOK_EVERY_S:
            # Said before it is asked, so that a hundred callers in that second ask once; only the first waits.
            self._champions[place] = now_s, model
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._threads, self._reigning, spec.id, spec.version, seat)
            self._champions[place] = now_s, model
        return model

    def _reigning(self, game: GameId, version: str, seat: int) -> ModelId | None:
        signed = self._registry.champion(game, version, seat)
        return None if signed is None else verify(signed, self._registry.trust).model

    async def _load(self, model: ModelId) -> "_Batcher":
        loop = asyncio.get_running_loop()
        session = await loop.run_in_executor(self._threads, lambda: _Session(self._registry.fetch(model)))
        if model not in self._models:
            self._models[model] = _Batcher(session, self._threads)
            while len(self._models) > MODELS:
                self._models.popitem(last=False)
        return self._models[model]


class _Session:
    """One model in ONNX Runtime."""

    def __init__(self, model: Model) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.id, self.spec = model.id, model.card.spec
        try:
            self._session = onnxruntime.InferenceSession(model.files[ONNX], options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  (the runtime's errors share no base class but this)
            raise ModelDamaged(
                f"ONNX Runtime refuses it: {error}", where=f"model {model.id[:12]}", do="Publish it anew"
            ) from None
        self._inputs = {one.name: _DTYPES.get(one.type, "float32") for one in self._session.get_inputs()}
        # How many numbers a recurrent model remembers; 0 where it has no memory.
        self.state_numbers: int = next((one.shape[1] for one in self._session.get_inputs() if one.name == _STATE), 0)
        names = [one.name for one in self._session.get_outputs()]
        scores = "logits" if "logits" in names else "mean"
        self._outputs = [scores, *(name for name in ("value", "state_out") if name in names)]

    def run(self, batch: list[tuple[SeatSpec, InferenceRequest]], rng: Generator) -> list[Decision]:
        """Rows of one seat kind each; the batch is one run."""
        feeds: dict[str, Array] = {}
        for name, dtype in self._inputs.items():
            if name == _STATE:
                rows = [np.zeros(self.state_numbers) if one.state is None else one.state for _, one in batch]
            elif name == "legal":
                rows = [np.ones(seat.action.masks) if one.legal is None else one.legal for seat, one in batch]
            else:
                rows = [np.asarray(one.observation[name]) for _, one in batch]
            feeds[name] = np.stack(rows).astype(dtype, copy=False)
        scores, *rest = self._session.run(self._outputs, feeds)
        made = dict(zip(self._outputs[1:], rest, strict=True))
        values, before, after = made.get("value"), feeds.get(_STATE), made.get("state_out")
        decisions = []
        for row, (seat, one) in enumerate(batch):
            action, logp = _chosen(seat, scores[row : row + 1], one, rng)
            value = None if values is None else float(values[row])
            decided = Decision(action, logp, value, self.id)
            if before is not None and after is not None:
                decided = replace(decided, before=before[row], after=after[row])
            decisions.append(decided)
        return decisions


class _Batcher:
    """Callers of one model, in batches."""

    def __init__(self, session: _Session, threads: ThreadPoolExecutor) -> None:
        self._session, self._threads = session, threads
        self.card_spec, self.state_numbers = session.spec, session.state_numbers
        self._rng = np.random.default_rng()
        self._waiting: deque[tuple[SeatSpec, InferenceRequest, asyncio.Future[Decision]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def decide(self, seat: SeatSpec, asked: InferenceRequest) -> Decision:
        if len(self._waiting) >= MAX_WAITING:
            raise ServerBusy(
                "too many callers wait for this model", where="act", do="Ask again later", limit=MAX_WAITING
            )
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((seat, asked, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                rows = [(seat, asked) for seat, asked, _ in batch]
                try:
                    decisions = await loop.run_in_executor(self._threads, self._session.run, rows, self._rng)
                except Exception as error:  # noqa: BLE001  (the runtime's own, or a shutdown: told to each caller)
                    _fail(batch, error, self._session.id)
                    continue
                for (_, _, answer), decision in zip(batch, decisions, strict=True):
                    if not answer.done():
                        answer.set_result(decision)
        finally:
            self._running = None


def _check_state(state: Array | None, numbers: int) -> None:
    if state is not None and state.shape != (numbers,):
        raise ChunkRefused(
            "the state is not this model's",
            where="act",
            do="Send what its last answer gave, with that answer's model; leave both out where an episode begins",
            field="state",
            value=list(state.shape),
            limit=[numbers],
        )


def by_chance(seat: SeatSpec, legal: Array | None, rng: Generator) -> Decision:
    """A uniform legal action; a box within its bounds, or ±1 where it has none."""
    action = seat.action
    if action.choices:
        chosen, logp = _chosen(seat, np.zeros((1, action.masks), np.float32), InferenceRequest({}, legal, 0.0), rng)
        return Decision(chosen, logp, None, None)
    low, high = (-1.0 if action.low is None else action.low), (1.0 if action.high is None else action.high)
    drawn = (low + (high - low) * rng.random(action.shape)).astype(action.dtype)
    return Decision(drawn.tolist(), None, None, None)


def _chosen(seat: SeatSpec, scores: Array, asked: InferenceRequest, rng: Generator) -> tuple[Any, float | None]:
    """One row's action as plain numbers, and its log-probability."""
    action = seat.action
    if not action.choices:  # a mean: the density of a choice without chance is no number
        if asked.strength is not None and rng.random() >= asked.strength:
            return by_chance(seat, asked.legal, rng).action, None
        low = -np.inf if action.low is None else action.low
        high = np.inf if action.high is None else action.high
        return np.clip(scores[0].reshape(action.shape), low, high).astype(action.dtype).tolist(), None
    mask = None if asked.legal is None else asked.legal.astype(bool)[None]
    choice = choose(action, scores, mask, rng, asked.strength)
    return choice.action[0].tolist(), float(choice.logp[0])


def _fail(
    batch: list[tuple[SeatSpec, InferenceRequest, "asyncio.Future[Decision]"]], error: Exception, model: ModelId
) -> None:
    said = error if isinstance(error, SparringError) else None
    for _, _, answer in batch:
        if not answer.done():
            answer.set_exception(
                said
                or Refused(
                    f"the model did not run: {type(error).__name__}",
                    where=f"model {model[:12]}",
                    do="Send its spec's views",
                )
            )


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
