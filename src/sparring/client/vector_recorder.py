"""record_many: many steps of n games at once, with the meaning of record, earn and end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sparring.games.step_buffer import Rows
from sparring.games.step_layout import TOLERANCE, StepLayout, refused
from sparring.wire.chunk import Array, Source
from sparring.wire.ids import EpisodeId, new_episode

if TYPE_CHECKING:
    from sparring.client.connection import Connection
    from sparring.client.episode import Episode

RUNNING, TERMINATED = 0, 1
_PLAIN = {  # columns of one number a row, and their dtype where it matters
    "reward": "float32",
    "tick": "int64",
    "behaviour_logp": "float32",
    "seed": "uint64",
    "acts": "",
    "ending": "",
    "outcome": "",
}
REMEMBERED_NAMES = 64  # episodes of one game whose names are kept for its other seats


class VectorRecorder:
    """n games that are recorded together, seat by seat. Game j's k-th episode has one name for all seats."""

    def __init__(self, connection: "Connection", name: str) -> None:
        self._connection, self._name = connection, name
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
            self._record_game(
                track, {name: array[:, track.game] for name, array in checked.items()}, layout, (seat, actor, source)
            )

    def _record_game(
        self, track: "_Track", rows: dict[str, Array], layout: StepLayout, how: tuple[int, str, Source]
    ) -> None:
        start, total = 0, len(rows["reward"])
        ends = np.flatnonzero(rows["ending"]) + 1 if "ending" in rows else np.array([], int)
        for end in (*ends.tolist(), total):
            if end > start:
                episode = track.episode or self._open(track, rows, start, how)
                part = {name: array[start:end] for name, array in rows.items()}
                _write(episode, track, part, layout)
                if end in ends:
                    _finish(episode, {name: array[end - 1] for name, array in rows.items()}, layout)
                    track.close()
            start = end

    def _open(self, track: "_Track", rows: dict[str, Array], row: int, how: tuple[int, str, Source]) -> "Episode":
        seat, actor, source = how
        key = (track.game, track.count)
        name = self._names.setdefault(key, new_episode(self._connection.now_ms()))
        self._names.pop((track.game, track.count - REMEMBERED_NAMES), None)
        seed = int(rows["seed"][row]) if "seed" in rows else None
        track.episode = self._connection.episode(seat, episode=name, seed=seed, actor=actor, source=source)
        return track.episode


class _Track:
    """One seat of one game: its open episode, how many it had, and its clock."""

    def __init__(self, game: int) -> None:
        self.game, self.count, self.clock = game, 0, 0
        self.episode: Episode | None = None

    def close(self) -> None:
        self.episode, self.clock = None, 0
        self.count += 1


def _write(episode: "Episode", track: _Track, part: dict[str, Array], layout: StepLayout) -> None:
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


def _finish(episode: "Episode", row: dict[str, Array], layout: StepLayout) -> None:
    final = {slot.name: row[f"final_{slot.name}"] for slot in layout.slots}
    outcome = float(row["outcome"]) if "outcome" in row else None
    episode.end(final, terminated=int(row["ending"]) == TERMINATED, outcome=outcome)


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
