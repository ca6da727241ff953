"""What a game records through: an episode's seat (act, record, earn, end), and many games at once (record_many)."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sparring.errors import Refused
from sparring.games.frame_stack import FrameStacks
from sparring.games.step_buffer import TOLERANCE, Behaviour, Rows, StepBuffer, StepLayout, refused
from sparring.nets.chooser import ActRequest, Chooser, Decision, LadderChooser
from sparring.wire.chunk import Array, Header, Source
from sparring.wire.ids import EpisodeId, new_episode

if TYPE_CHECKING:
    from sparring.client.connection import Connection

_PLAIN = {  # columns of record_many of one number a row, and their dtype where it matters
    "reward": "float32",
    "tick": "int64",
    "behaviour_logp": "float32",
    "seed": "uint64",
    "acts": "",
    "ending": "",
    "outcome": "",
}
REMEMBERED_NAMES = 64  # episodes of one game whose names are kept for its other seats


class Episode:
    """One seat of one episode. Its calls come from one thread at a time; episodes may live in several threads.

    `id` and `sample_rate` are what another connection needs to record another seat of the same episode.
    """

    def __init__(
        self,
        connection: "Connection",
        layout: StepLayout,
        header: Header,
        actor: str,
        buffer: StepBuffer | None,
        chooser: Chooser | LadderChooser | None,
    ) -> None:
        """`buffer` is None where the steps are not recorded, `chooser` where this process holds no model."""
        self.id, self.sample_rate, self.seat = header.episode, header.sample_rate, header.seat
        self.steps = 0  # decisions given to record()
        self._connection, self._layout, self._buffer, self._chooser = connection, layout, buffer, chooser
        self._actor = actor
        self._decision: Decision | None = None
        self._last: Decision | None = None  # the last one by a recurrent model, whose state goes on
        self._legal: Any = None
        self._stacks = FrameStacks(layout.seat, layout.frame_stack, 1)  # of this seat's decisions
        self._ended = False

    @property
    def recorded(self) -> bool:
        """Whether the steps of this episode are kept: the gateway asked for it, and memory sufficed."""
        return self._buffer is not None and not self._buffer.lost

    def act(
        self, observation: Any, legal: Any = None, *, search_ms: float | None = None, state: bytes | None = None
    ) -> Any:
        """An action for `observation`, by the model that this episode began with; random where there is none yet.

        A recurrent model's state and stacks of frames advance with each call: ask once for each decision. With
        `search_ms` the model looks ahead for so long, in games without hidden information or chance; `state` is what
        `save()` of the game gave, for a game whose observation does not show all of it. Refused where it cannot.
        """
        if search_ms is not None and not 0.0 <= search_ms < float("inf"):
            raise Refused(
                f"search_ms={search_ms!r}", where="act", do="Give a number of milliseconds", field="search_ms"
            )
        seen = self._read(observation)
        leaves = {name: row[0] for name, row in self._stacks.peek(seen).items()}
        mask = None if legal is None else self._layout.checked_legal(legal, to_act=True)
        search_ms = None if search_ms is None else float(search_ms)  # NumPy's numbers are not sent as JSON
        asked = ActRequest(leaves, mask, None, None, search_ms, state, vary=self._connection.spec.has_rivals)
        self._decision = self._connection.decide(self.seat, self._layout.seat, self._chooser, asked, self._last)
        self._stacks.push(seen)  # now: what was refused can be asked again
        if self._decision.state_after is not None:
            self._last = self._decision
        self._legal = mask
        return self._decision.action

    def record(
        self,
        observation: Any,
        action: Any,
        reward: float = 0.0,
        *,
        tick: int | None = None,
        legal: Any = None,
        logp: float | None = None,
    ) -> None:
        """One decision: what the seat saw, what it did, and what it has earned by it so far.

        Returns at once; ChunkRefused where the step breaks the game's spec, and then nothing was recorded.
        An action equal to the one that act() just chose is the model's, with its log-probability.
        """
        decision, actor, state = self._decision, self._actor, None
        if legal is None:
            legal = self._legal
        if decision is not None and _same(decision.action, action):
            actor, state = decision.actor, decision.state_before
            if logp is None:
                logp = decision.logp
        if self._ended:
            raise self._over("record")
        buffer = self._buffer
        if buffer is not None:
            buffer.write(observation, action, reward, tick=tick, legal=legal, by=Behaviour(actor, logp, state))
        if decision is None and self._stacks.frames > 1:
            self._stacks.push(self._read(observation))  # the model sees a person's decisions, too
        self.steps += 1
        self._decision = self._legal = None

    def record_rows(self, rows: Rows) -> None:
        """Many decisions at once, which `record_many` has checked."""
        if self._buffer is not None:
            self._buffer.write_rows(rows, self._actor)
        self.steps += len(rows.reward)

    def earn(self, reward: float) -> None:
        """Add to the last step what its player earned since, while others moved."""
        if self._ended:
            raise self._over("earn")
        if self._buffer is not None:
            self._buffer.earn(reward)

    def end(self, final_observation: Any, *, terminated: bool = True, outcome: float | None = None) -> None:
        """The episode is over for this seat; `terminated=False` where it was cut short. `outcome` is its score."""
        if self._ended:
            raise self._over("end")
        if self._buffer is not None:
            self._buffer.end(final_observation, terminated=terminated, outcome=outcome)
        self._close()

    def leave(self) -> None:
        """Left before the end: truncated at the last observation seen, and the decision taken on it falls away."""
        if not self._ended:
            if self._buffer is not None:
                self._buffer.leave()
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _read(self, observation: Any) -> dict[str, Array]:
        """By leaf, [1, *shape]; ChunkRefused where it is not what this seat sees."""
        rows = [np.empty((1, *slot.shape), slot.dtype) for slot in self._layout.slots]
        self._layout.put_observation(rows, 0, observation)
        return {slot.name: row for slot, row in zip(self._layout.slots, rows, strict=True)}

    def _close(self) -> None:
        self._ended = True
        self._connection.ended(self, self._buffer)

    def _over(self, verb: str) -> Refused:
        return Refused("the episode has ended", where=verb, do="Open the next one with episode()")


def _same(chosen: Any, action: Any) -> bool:
    if type(chosen) is int:
        return bool(chosen == action)
    return bool(np.array_equal(chosen, action))


class VectorRecorder:
    """`record_many`: n games that are recorded together, seat by seat, with the meaning of record, earn and end. Game
    j's k-th episode has one name for all seats."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._names: dict[tuple[int, int], EpisodeId] = {}
        self._seats: dict[int, list[_Track]] = {}

    def record(self, columns: Mapping[str, Array], *, seat: int, actor: str, source: Source) -> None:
        """Each column is [steps, n, …].

        Observation leaves, `action`, `reward`; optional `tick`, `legal`, `behaviour_logp`; `acts` (bool; absent:
        always), and where it is false the row's reward belongs to the decision before it; `ending` (0 running,
        1 terminated, 2 truncated, after the row's action), and where it is not 0 the rows of
        `final_observation/<leaf>` and `outcome` say how it ended and the game's next row opens its next episode,
        whose `seed` stands in that row.
        """
        layout = self._connection.layout(seat)
        checked = _checked(columns, layout)
        games = checked["reward"].shape[1]
        tracks = self._seats.setdefault(seat, [_Track(j) for j in range(games)])
        if len(tracks) != games:
            raise refused("columns", f"they hold {games} games", games, len(tracks))
        for track in tracks:
            rows = {name: array[:, track.game] for name, array in checked.items()}
            ends = (np.flatnonzero(rows["ending"]) + 1).tolist() if "ending" in rows else []
            for start, end in itertools.pairwise((0, *ends, len(rows["reward"]))):
                if end > start:
                    part = {name: array[start:end] for name, array in rows.items()}
                    episode = track.episode or self._open(track, part, seat, actor, source)
                    _write(episode, track, part, layout)
                    if end in ends:
                        _finish(episode, {name: array[-1] for name, array in part.items()}, layout)
                        track.episode, track.clock, track.count = None, 0, track.count + 1

    def _open(self, track: "_Track", part: dict[str, Array], seat: int, actor: str, source: Source) -> Episode:
        name = self._names.setdefault((track.game, track.count), new_episode(self._connection.now_ms()))
        self._names.pop((track.game, track.count - REMEMBERED_NAMES), None)
        seed = int(part["seed"][0]) if "seed" in part else None
        track.episode = self._connection.episode(seat, episode=name, seed=seed, actor=actor, source=source)
        return track.episode


@dataclass(slots=True)
class _Track:
    """One seat of one game: its open episode, how many it had, and its clock."""

    game: int
    count: int = 0
    clock: int = 0
    episode: Episode | None = None


def _write(episode: Episode, track: _Track, part: dict[str, Array], layout: StepLayout) -> None:
    total = len(part["reward"])
    tick = part["tick"] if "tick" in part else np.arange(track.clock, track.clock + total)
    track.clock = int(tick[-1]) + 1
    acting = np.flatnonzero(part["acts"]) if "acts" in part else np.arange(total)
    before = part["reward"][: acting[0] if len(acting) else total].sum(dtype=float)
    if before and episode.steps:  # a seat that has not moved yet has no step to carry it
        episode.earn(float(before))
    if not len(acting):
        return
    earned = np.add.reduceat(part["reward"], acting) if len(acting) < total else part["reward"]
    legal, logp = part.get("legal"), part.get("behaviour_logp")
    rows = Rows(
        leaves=[part[slot.name][acting] for slot in layout.slots],
        action=part["action"][acting],
        reward=earned,
        tick=tick[acting],
        legal=None if legal is None else legal[acting],
        logp=None if logp is None else logp[acting],
    )
    episode.record_rows(rows)


def _finish(episode: Episode, row: dict[str, Array], layout: StepLayout) -> None:
    final = {slot.name: row[f"final_{slot.name}"] for slot in layout.slots}
    outcome = float(row["outcome"]) if "outcome" in row else None
    episode.end(final, terminated=int(row["ending"]) == 1, outcome=outcome)


def _checked(columns: Mapping[str, Array], layout: StepLayout) -> dict[str, Array]:
    """The columns by their full names, in their dtypes; ChunkRefused before anything is recorded."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_PLAIN, ())
    shapes |= {"action": layout.action.shape, "legal": (layout.masks,)}
    dtypes = {name: np.dtype(kind) for name, kind in _PLAIN.items() if kind}
    dtypes |= {"action": layout.action_dtype, "legal": np.dtype("uint8")}
    for slot in layout.slots:
        for name in (slot.name, f"final_{slot.name}"):
            shapes[name], dtypes[name] = slot.shape, slot.dtype
    given = {
        f"observation/{name}" if f"observation/{name}" in shapes else name: np.asarray(a) for name, a in columns.items()
    }
    wanted = {slot.name for slot in layout.slots} | {"action", "reward"}
    if "ending" in given:
        wanted |= {f"final_{slot.name}" for slot in layout.slots}
    if unknown := (given.keys() - shapes.keys()) or (wanted - given.keys()):
        raise refused(min(unknown), "it is unknown, or missing", sorted(given), sorted(wanted))
    lead = given["reward"].shape
    if len(lead) != 2 or 0 in lead:
        raise refused("reward", f"it has shape {lead}", lead, "[steps, n]")
    out = {}
    for name, array in given.items():
        if array.shape != (*lead, *shapes[name]):
            raise refused(name, f"it has shape {array.shape}", array.shape, (*lead, *shapes[name]))
        if name in dtypes and not np.can_cast(array.dtype, dtypes[name], "same_kind"):
            raise refused(name, f"{array.dtype} does not fit", array.dtype.name, dtypes[name].name)
        out[name] = array.astype(dtypes[name], copy=False) if name in dtypes else array
        if array.dtype.kind == "f" and not name.startswith("final_") and not np.isfinite(out[name]).all():
            raise refused(name, "it has a NaN or infinite entry", "not finite", "finite")
    _check_ranges(out, layout)
    return out


def _check_ranges(columns: dict[str, Array], layout: StepLayout) -> None:
    acts = columns.get("acts", np.ones(columns["reward"].shape, bool)).astype(bool)
    action, reward = columns["action"][acts], columns["reward"]
    if layout.action.choices:
        limits = np.reshape(layout.action.choices, layout.action.shape)
        if (action < 0).any() or (action >= limits).any():
            raise refused("action", "one is out of range", int(action.max(initial=0)), layout.action.choices)
    if layout.choices and "legal" in columns:
        taken = np.take_along_axis(columns["legal"][acts], action[:, None].astype(np.int64), axis=1)
        if not taken.all():
            raise refused("action", "one is not legal", "illegal", "legal")
    if not ((reward >= layout.low) & (reward <= layout.high)).all():
        raise refused("reward", "one is out of bounds", float(np.abs(reward).max()), layout.seat.reward_bounds)
    logp = columns.get("behaviour_logp")
    if logp is not None and layout.masks and (logp > TOLERANCE).any():
        raise refused("behaviour_logp", "one is above 0", float(logp.max()), 0.0)
