"""A shard of replay as a service: a table of its own, for some of the actors."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from sparring.config import ReplayConfig
from sparring.games.spec import GameSpec
from sparring.learn.actors.experience import joined
from sparring.replay.gather import Window
from sparring.replay.sampler import Prioritised
from sparring.replay.steps import Batch
from sparring.replay.table import open_table
from sparring.services.register import register
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

_RNG_STREAM = 5  # of the random streams that a seed has


class ReplayShard:
    """One that takes a dead one's place begins empty, and says so by its generation."""

    def __init__(  # noqa: PLR0913  (plain data: all that a table and its draws need)
        self,
        spec: bytes,
        replay: dict[str, Any],
        draw: dict[str, Any],
        streams: int,
        state_numbers: int,
        seed: int,
        index: int = 0,
        generation: int = 0,
    ) -> None:
        game = msgspec.json.decode(spec, type=GameSpec)
        self._seat, self._streams, self._generation, self._draw = game.seats[0], streams, generation, draw
        self._table = open_table(
            self._seat,
            msgspec.convert(replay, ReplayConfig),
            streams=draw["actors"] * streams,
            masks=self._seat.action.masks > 0,
            frame_stack=game.frame_stack,
            state_numbers=state_numbers,
        )
        self._rng = np.random.default_rng([seed, _RNG_STREAM, index, generation])
        self._last: dict[int, tuple[int, int]] = {}  # of each actor: its life, and which block of it

    @register(queue=64, full="wait")
    def insert(self, block: dict[str, Any]) -> dict[str, Any]:
        """Take a block in as an actor answered it; what it came to, without its steps."""
        actor, now = block["actor"], (block["generation"], block["number"])
        if (before := self._last.get(actor)) is not None and now != (before[0], before[1] + 1):
            for stream in range(actor * self._streams, (actor + 1) * self._streams):
                self._table.break_off(stream)  # another's games, or something between was lost
        self._table.widen((actor + 1) * self._streams)
        self._last[actor] = now
        taken = joined(block["columns"], self._seat)
        steps = taken.steps
        self._table.insert(replace(steps, stream=steps.stream + actor * self._streams))
        ended = taken.episodes
        return self._status() | {
            "returns": ended.returns.copy(),
            "against": ended.against_others.copy(),
            "env_steps": taken.env_steps,
            "games": taken.games,
            "steps": len(steps),
        }

    @register(queue=64, full="wait")
    def sample(self, counts: list[int]) -> dict[str, Any] | None:
        """A draw of each count, with the chances within this shard; None where it has nothing."""
        if not self._table.ready:
            return None
        before = self._status()
        return before | {"draws": [self._drawn(count) if count else None for count in counts]}

    @register(response=False, queue=1024)
    def learned(self, rows: Array, priorities: Array, generation: int) -> None:
        """What the learner said; nothing where it speaks of a table that is gone."""
        if generation == self._generation:
            self._table.update_priorities(rows, priorities)

    @register()
    def save(self) -> Tree:
        """The table, whole. A successor's is another, so that a lost call is not made again."""
        state = self._table.save()
        return {"table": state | {"rows": np.asarray(state["rows"])}}

    @register()
    def load(self, state: Tree) -> dict[str, Any]:
        """Back to what `save` gave; the games of those actors are not gone on with."""
        self._table.load(state["table"])
        for stream in range(self._table.streams):
            self._table.break_off(stream)
        return self._status()

    def _drawn(self, count: int) -> dict[str, Any]:
        """Steps, the rows that `learned` speaks of, and the chance of each draw."""
        draw, table = self._draw, self._table
        if draw["sequence_steps"]:
            window = Window(draw["sequence_steps"], draw["burn_in_steps"], draw["overlap_steps"])
            batch, rows = table.sample_windows(count, self._rng, window)
            drawn = np.array([one[one >= 0][0] for one in rows.T])
        else:
            batch, rows = table.sample(count, self._rng, n_steps=draw["n_steps"], discount=draw["discount"])
            drawn = rows
        columns = {name: value for name in Batch.__slots__ if (value := getattr(batch, name)) is not None}
        return {"batch": columns, "rows": rows, "chance": self._chance(drawn)}

    def _status(self) -> dict[str, Any]:
        sampler = self._table.sampler
        mass, exponent = float(len(sampler)), None  # of draws that are not weighted
        if isinstance(sampler, Prioritised):
            mass, exponent = sampler.total, sampler.importance_exponent
        return {"generation": self._generation, "size": len(sampler), "mass": mass, "exponent": exponent}

    def _chance(self, rows: Array) -> Array:
        """Of each draw to have been that row."""
        sampler = self._table.sampler
        if isinstance(sampler, Prioritised):
            return sampler.chance(rows)
        return np.full(len(rows), 1.0 / max(1, len(sampler)))
