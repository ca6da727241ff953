"""What the games here share: checked actions, state as bytes, and the bookkeeping of games with one seat."""

import difflib
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from sparring.errors import Missing, Refused, WireError
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array


class BaseGame:
    """n games with a clock and an ending each. `save` and `restore` write and read the arrays of `_arrays`."""

    spec: GameSpec

    def __init__(self, n: int) -> None:
        self.n = n
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)  # no game runs before its first reset

    def save(self) -> bytes:
        """All n games, exactly; Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        return state_bytes(self.spec, self._arrays())

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave; Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        read_state(self.spec, state, self._arrays())

    def _arrays(self) -> dict[str, Array]:
        """Everything that the next step depends on."""
        return {"tick": self._tick, "ending": self._ending}

    def _require_resimulation(self) -> None:
        if not self.spec.resimulates:
            do = "Use a game whose spec says resimulates = true"
            raise Refused("its state cannot be saved and restored", where=f"game {self.spec.id}", do=do)

    def _checked_actions(self, seat: int, action: Array, acting: Array, legal: Array | None = None) -> Array:
        """[n, *shape]: the actions, 0 where a discrete one is not `acting`; Refused before the game changes."""

        def refused(wrong: str, do: str) -> Refused:
            return Refused(wrong, where=f"{self.spec.id}, seat {seat}", do=do, field="action")

        leaf, action = self.spec.seats[seat].action, np.asarray(action)
        if action.shape != (self.n, *leaf.shape):
            raise refused(f"actions of shape {action.shape}", f"Give {(self.n, *leaf.shape)}")
        if leaf.kind != "discrete":
            return action
        moves = np.where(acting, action, 0).astype(np.int64)
        wrong = (moves < 0) | (moves >= leaf.choices[0])
        if wrong.any():
            row = int(wrong.argmax())
            raise refused(f"action {moves[row]} in game {row}", f"Choose from 0 to {leaf.choices[0] - 1}")
        if legal is not None and not (allowed := legal[np.arange(self.n), moves] | ~acting).all():
            row = int((~allowed).argmax())
            choices = ", ".join(map(str, np.flatnonzero(legal[row])))
            raise refused(f"action {moves[row]} in game {row} is not legal", f"Choose from {choices}")
        return moves


class OneSeatGame(BaseGame):
    """n games of one seat, whose outcome is the sum of their rewards. A finished one stands still until its reset."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._score = np.zeros(n)

    def _arrays(self) -> dict[str, Array]:
        return {"tick": self._tick, "ending": self._ending, "score": self._score}

    def _start(self, which: Array) -> None:
        self._tick[which], self._score[which], self._ending[which] = 0, 0.0, RUNNING

    def _advance(self, running: Array, reward: Array, terminated: Array, truncated: Array | bool = False) -> Array:
        """Count one step of the `running` games; their rewards, float32 [n], 0 for the others."""
        earned = np.where(running, reward, 0)
        self._score += earned
        self._tick += running
        late = truncated | (self._tick >= self.spec.max_ticks)
        ending = np.where(terminated, TERMINATED, np.where(late, TRUNCATED, RUNNING))
        self._ending = np.where(running, ending, self._ending).astype(np.uint8)
        return earned.astype(np.float32)

    def _view(self, observation: Columns, reward: Array | None = None, legal: Array | None = None) -> View:
        """`observation`, `reward` and `legal` now belong to the caller."""
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=(observation,),
            legal=(legal,),
            reward=np.zeros((self.n, 1), np.float32) if reward is None else reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, self._score, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


class _State(msgspec.Struct, forbid_unknown_fields=True):
    game: str
    spec: str
    arrays: dict[str, bytes]


def state_bytes(spec: GameSpec, arrays: Mapping[str, Array]) -> bytes:
    """The arrays of one game's state, without a pickle."""
    raw = {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
    return msgspec.msgpack.encode(_State(spec.id, spec.hash, raw))


def read_state(spec: GameSpec, state: bytes, arrays: Mapping[str, Array]) -> None:
    """Write what `state_bytes` gave into `arrays`, which must be the same in name, shape and dtype."""

    def refused(wrong: str) -> WireError:
        return WireError(
            wrong, where=f"state of {spec.id}", do="Restore what save() of the same game with the same n gave"
        )

    try:
        found = msgspec.msgpack.decode(state, type=_State)
    except msgspec.DecodeError as error:
        raise refused(f"the bytes do not read: {error}") from None
    if (found.game, found.spec) != (spec.id, spec.hash):
        raise refused(f"the state is one of {found.game} with spec {found.spec[:12]}")
    if {name: len(raw) for name, raw in found.arrays.items()} != {name: a.nbytes for name, a in arrays.items()}:
        raise refused("the state is one of another number of games")
    for name, array in arrays.items():
        array[...] = np.frombuffer(found.arrays[name], array.dtype).reshape(array.shape)


def not_installed(package: str, where: str) -> Missing:
    """The library behind an adapter is not there."""
    return Missing(f"{package} is not installed", where=where, do='Install it with: pip install "sparring[games]"')


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """What to do about a name that is not among the `known` ones."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {prefix + near[0]!r}" if near else otherwise
