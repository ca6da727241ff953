"""A model that chooses actions: ONNX Runtime in this process, or chance where there is no model yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.errors import ModelDamaged
from sparring.games.spec import SeatSpec
from sparring.nets.policies import choose
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import ONNX, Model

CHANCE = "script:random"
STATE = "state"  # a recurrent model's one input beside what the seat sees


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen, by whom, and how probable that was; `logp` None where it is not known.

    `before` and `after` are a recurrent model's memory around it: what it was given, and what its next decision is.
    """

    action: Any
    actor: str
    logp: float | None
    before: Array | None = None  # float32 [numbers]
    after: Array | None = None


class Runner:
    """One model. Safe to call from several threads."""

    def __init__(self, model: Model) -> None:
        import onnxruntime  # here: a game that only records never pays for it

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one row; the game needs its cores
        options.log_severity_level = 3
        self.id: ModelId = model.id
        self.actor = f"model:{model.id}"
        try:
            self._session = onnxruntime.InferenceSession(model.files[ONNX], options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class but this
            raise ModelDamaged(
                f"ONNX Runtime does not load it: {error}", where=f"model {model.id[:12]}", do="Publish it anew"
            ) from None
        self._inputs = {entry.name: _DTYPES.get(entry.type, "float32") for entry in self._session.get_inputs()}
        self._shapes = {entry.name: tuple(entry.shape[1:]) for entry in self._session.get_inputs()}
        outputs = [entry.name for entry in self._session.get_outputs()]
        self._outputs = [next((name for name in ("logits", "mean") if name in outputs), outputs[0])]
        self._memory: int = self._shapes.pop(STATE, (0,))[0]  # numbers; 0 without one
        if self._memory:
            self._outputs.append("state_out")

    def check(self, seat: SeatSpec, frame_stack: int = 1) -> None:
        """Return, or ModelDamaged where it does not take what this seat sees, in stacks of that many frames."""
        known = {leaf.name: leaf.stacked(frame_stack) for leaf in seat.observation} | {"legal": (seat.action.masks,)}
        for name, shape in self._shapes.items():
            if known.get(name) != shape:
                raise ModelDamaged(
                    f"its input {name} has shape {shape}, the seat gives {known.get(name)}",
                    where=f"model {self.id[:12]}",
                    do="Train for this game",
                )

    def decide(
        self,
        seat: SeatSpec,
        observation: Mapping[str, Array],
        legal: Array | None,
        rng: Generator,
        strength: float | None,
        held: Decision | None = None,
    ) -> Decision:
        """The action for one observation (leaves without a batch axis); `held` is the model's decision before this
        one in the episode, whose memory goes on."""
        feeds: dict[str, Array] = {}
        before = self._before(held)
        for name, dtype in self._inputs.items():
            if name == STATE:
                row = before
            elif name == "legal":
                row = np.ones(seat.action.masks, dtype) if legal is None else np.asarray(legal).astype(dtype)
            else:
                row = np.asarray(observation[name], dtype)
            feeds[name] = row[None]
        scores, *after = self._session.run(self._outputs, feeds)
        mask = None if legal is None else np.asarray(legal, bool)[None]
        chosen = _chosen(seat, scores, mask, rng, strength, self.actor)
        return Decision(*chosen, before, after[0][0]) if after else Decision(*chosen)

    def _before(self, held: Decision | None) -> Array:
        if held is None or held.actor != self.actor or held.after is None:
            return np.zeros(self._memory, np.float32)
        return held.after


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


def by_chance(seat: SeatSpec, legal: Array | None, rng: Generator) -> Decision:
    """A uniform legal action; a box within its bounds, or ±1 where it has none."""
    action = seat.action
    if action.choices:
        scores = np.zeros((1, action.masks), np.float32)
        mask = None if legal is None else np.asarray(legal, bool)[None]
        return Decision(*_chosen(seat, scores, mask, rng, 0.0, CHANCE))
    low, high = (-1.0 if action.low is None else action.low), (1.0 if action.high is None else action.high)
    drawn = low + (high - low) * rng.random(action.shape)
    density = -float(np.prod(action.shape, dtype=float)) * float(np.log(high - low)) if high > low else None
    return Decision(drawn.astype(action.dtype), CHANCE, density)


def _chosen(
    seat: SeatSpec, scores: Array, legal: Array | None, rng: Generator, strength: float | None, actor: str
) -> tuple[Any, str, float | None]:
    action = seat.action
    if not action.choices:  # a mean; the density of a deterministic choice is not a number
        if strength is not None and rng.random() >= strength:
            return by_chance(seat, legal, rng).action, actor, None
        low = -np.inf if action.low is None else action.low
        high = np.inf if action.high is None else action.high
        return np.clip(scores[0].reshape(action.shape), low, high).astype(action.dtype), actor, None
    choice = choose(action, scores, legal, rng, strength)
    chosen = int(choice.action[0]) if action.kind == "discrete" else choice.action[0]
    return chosen, actor, float(choice.logp[0])
