"""How a deployed model chooses an action: ONNX Runtime and NumPy alone. The client and the gateway both use this.

A `Chooser` runs one model. Where there is no model yet, `uniform` draws a legal action. Either gives a `Decision`
with the log-probability (or, of a box, the log-density) with which the action was drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.errors import ModelDamaged
from sparring.games.spec import SeatSpec
from sparring.nets.policies import choose, nearly_best, sample
from sparring.nets.shapes import STATE
from sparring.nets.tree_search import SearchModel, TreeSearch
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import ONNX, Card, Model
from sparring.wire.strengths import StrengthStep

RANDOM_ACTOR = "script:random"  # the actor of a step where there was no model
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {
    f"tensor({name})": name for name in ("uint8", "int8", "int16", "int32", "int64", "bool")
}


@dataclass(frozen=True, slots=True)
class ActRequest:
    """What one seat sees, leaves without a batch axis. `strength` 1 is the model at its best, 0 is a random action."""

    observation: Mapping[str, Array]
    legal: Array | None = None
    strength: float | None = None
    state: Array | None = None  # a recurrent model's `Decision.state_after` of the step before; None: an episode begins
    search_ms: float | None = None  # look ahead for so long
    game_state: bytes | None = None  # of `save()`, where a search begins; None: the observation shows it
    vary: bool = False  # at full strength, without a search, a choice nearly as good as the best is taken as well
    style: str | None = None  # of the strengths that the game sells


@dataclass(frozen=True, slots=True)
class Decision:
    """An action and who chose it. `logp` is None where it is not known: a model's mean has no density."""

    action: Any  # int of a discrete leaf, else an array
    actor: str
    logp: float | None
    value: float | None = None  # the model's estimate of the return, where it has one
    state_before: Array | None = None  # float32 [numbers] of a recurrent model: what it was given
    state_after: Array | None = None  # and what its next decision in the episode is given

    @property
    def model(self) -> ModelId | None:
        return None if self.actor == RANDOM_ACTOR else ModelId(self.actor.removeprefix("model:"))


def open_session(graph: bytes) -> Any:
    """ONNX Runtime with that graph, on one thread: few rows, and the game needs its cores."""
    import onnxruntime  # here: a game that only records never loads it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal ones alone: errors are raised
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class Chooser:
    """One model. Safe to call from several threads, each with its own generator."""

    def __init__(self, model: Model) -> None:
        self.id, self.spec_hash, self.actor = model.id, model.card.spec, f"model:{model.id}"
        self._card, self.kind = model.card, model.card.kind  # the seats that it plays; (): any
        try:
            self._session = open_session(model.files[ONNX])
        except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class but this
            wrong = f"ONNX Runtime does not load it: {error}"
            raise ModelDamaged(wrong, where=f"model {model.id[:12]}", do="Publish it again") from None
        inputs = self._session.get_inputs()
        self._dtypes = {entry.name: _DTYPES.get(entry.type, "float32") for entry in inputs}
        self._shapes = {entry.name: tuple(entry.shape[1:]) for entry in inputs}
        self.state_numbers: int = self._shapes.pop(STATE, (0,))[0]  # of a recurrent model; 0 without memory
        names = [entry.name for entry in self._session.get_outputs()]
        scores = next((name for name in ("logits", "mean") if name in names), names[0])
        self._outputs = [scores, *(name for name in ("value", "state_out") if name in names)]

    def check(self, seat: SeatSpec, frame_stack: int = 1) -> None:
        """Return, or ModelDamaged where the model does not take what this seat sees, in stacks of that many frames."""
        known = {leaf.name: leaf.stacked(frame_stack) for leaf in seat.observation} | {"legal": (seat.action.masks,)}
        for name, shape in self._shapes.items():
            if known.get(name) != shape:
                wrong = f"its input {name} has shape {shape}, the seat gives {known.get(name)}"
                raise ModelDamaged(wrong, where=f"model {self.id[:12]}", do="Train for this game")

    def decide(self, seat: SeatSpec, request: ActRequest, rng: Generator) -> Decision:
        """The action for one observation."""
        return self.decide_batch([(seat, request)], rng)[0]

    def search(self, tree: TreeSearch, seat: int, request: ActRequest, rng: Generator, deadline_s: float) -> Decision:
        """The action for one observation, after a look ahead until `deadline_s` of time.monotonic(); Refused where it
        shows no position of the game that the seat may move in."""
        state = request.game_state
        row = tree.row_of(seat, request.observation) if state is None else tree.row_of_state(state)
        model = SearchModel(self._card, tree.spec, self._run)
        found = tree.search(row, seat, model, deadline_s, request.legal)
        asked = replace(request, legal=np.isfinite(found.scores), vary=False)
        action, logp = _chosen(tree.spec.seats[seat], found.scores[None], asked, rng)
        return Decision(action, self.actor, logp, found.value)

    def _run(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        feeds = {name: columns[name].astype(dtype, copy=False) for name, dtype in self._dtypes.items()}
        return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))

    def decide_batch(self, batch: Sequence[tuple[SeatSpec, ActRequest]], rng: Generator) -> list[Decision]:
        """One action for each row, by one run of the model."""
        feeds: dict[str, Array] = {}
        for name, dtype in self._dtypes.items():
            if name == STATE:
                empty = np.zeros(self.state_numbers, np.float32)
                rows = [empty if one.state is None else one.state for _, one in batch]
            elif name == "legal":
                rows = [
                    np.ones(seat.action.masks) if one.legal is None else np.asarray(one.legal) for seat, one in batch
                ]
            else:
                rows = [np.asarray(one.observation[name]) for _, one in batch]
            feeds[name] = (rows[0][None] if len(rows) == 1 else np.stack(rows)).astype(dtype, copy=False)
        out = self._run(feeds)
        scores, values = out[self._outputs[0]], out.get("value")
        before, after = feeds.get(STATE), out.get("state_out")
        decisions = []
        for row, (seat, one) in enumerate(batch):
            action, logp = _chosen(seat, scores[row : row + 1], one, rng, self._card)
            value = None if values is None else float(values[row])
            states = (None, None) if before is None or after is None else (before[row], after[row])
            decisions.append(Decision(action, self.actor, logp, value, *states))
        return decisions


class LadderChooser:
    """One step of the strengths that a game sells. It is asked as a Chooser is, whatever the request's `strength`."""

    def __init__(self, step: StrengthStep, model: Chooser) -> None:
        self._share, self._model = step.share, model
        self.id, self.actor = model.id, model.actor

    def decide(self, seat: SeatSpec, request: ActRequest, rng: Generator) -> Decision:
        """The action for one observation."""
        if self._share == 0.0:  # nobody's moves
            return uniform(seat, request.legal, rng)
        return self._model.decide(seat, replace(request, strength=self._share), rng)

    def search(self, tree: TreeSearch, seat: int, request: ActRequest, rng: Generator, deadline_s: float) -> Decision:
        """The action for one observation, after a look ahead."""
        if self._share == 0.0:
            return uniform(tree.spec.seats[seat], request.legal, rng)
        return self._model.search(tree, seat, replace(request, strength=self._share), rng, deadline_s)


def uniform(seat: SeatSpec, legal: Array | None, rng: Generator) -> Decision:
    """A uniform legal action; a box within its bounds, or ±1 where it has none, with its density."""
    action = seat.action
    if action.choices:
        scores = np.zeros((1, action.masks), np.float32)
        drawn, logp = _chosen(seat, scores, ActRequest({}, legal, 0.0), rng)
        return Decision(drawn, RANDOM_ACTOR, logp)
    low, high = (-1.0 if action.low is None else action.low), (1.0 if action.high is None else action.high)
    box = (low + (high - low) * rng.random(action.shape)).astype(action.dtype)
    density = -float(np.prod(action.shape, dtype=float)) * float(np.log(high - low)) if high > low else None
    return Decision(box, RANDOM_ACTOR, density)


def _chosen(
    seat: SeatSpec, scores: Array, asked: ActRequest, rng: Generator, card: Card | None = None
) -> tuple[Any, float | None]:
    action, legal, strength = seat.action, asked.legal, asked.strength
    if action.choices:
        mask = None if legal is None else np.asarray(legal, bool)[None]
        samples, full = card is not None and card.samples, strength is None or strength >= 1.0
        if asked.vary and full and not samples and action.kind == "discrete":
            values = card is not None and card.policy == "greedy"
            choice = sample(nearly_best(scores, mask, values=values), None, rng)
        else:
            choice = choose(action, scores, mask, rng, strength, samples=samples)
        chosen = int(choice.action[0]) if action.kind == "discrete" else choice.action[0]
        return chosen, float(choice.logp[0])
    if strength is not None and rng.random() >= strength:
        return uniform(seat, legal, rng).action, None  # a mixture of a point and a box has no density
    low, high = -np.inf if action.low is None else action.low, np.inf if action.high is None else action.high
    return np.clip(scores[0].reshape(action.shape), low, high).astype(action.dtype), None
