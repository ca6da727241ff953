"""What people did, from the store into a table: the only way that records reach a learner."""

import hashlib
import logging
from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.games.protocol import ENDINGS
from sparring.games.spec import GameSpec
from sparring.replay.steps import SOURCES, Steps
from sparring.replay.table import Table
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk
from sparring.wire.tree import Tree, rng_state, set_rng_state

log = logging.getLogger(__name__)

_FINAL = "final_"


class Feeder:
    """Inserts the store's chunks into `table`, as its stream `stream`. Chunks of another spec are left out."""

    def __init__(
        self, store: Store, game: GameSpec, table: Table, stream: int, rng: Generator, seats: tuple[int, ...] = ()
    ) -> None:
        """Of those `seats` alone, where any are named."""
        self._store, self._game, self._table, self._stream, self._rng = store, game, table, stream, rng
        self._query = Query(game.id, seats=seats)
        self._due = 0.0
        self.steps: Counter[str] = Counter()  # inserted so far, by source
        self.unfit_chunks = 0
        self._uploaders: dict[str, int] = {}  # by the order in which they came, from 1
        self.until_ms: int | None = None  # of the newest row that was read

    def fill(self) -> int:
        """Everything the store holds, or as much as the table takes; how many steps that was."""
        held = self._store.stats(self._game.id).steps
        before = self._table.steps
        if held <= self._table.capacity // 2:  # final rows take room too
            for chunk in self._store.read(self._query):
                self._insert(chunk)
        else:
            while self._table.written < self._table.capacity and self.feed(self._table.capacity // 8):
                pass
        return self._table.steps - before

    def feed(self, steps: int) -> int:
        """At least `steps` steps in chunks drawn from the store; 0 where none of them fits."""
        before = self._table.steps
        for chunk in self._store.sample(self._query, steps, self._rng):
            self._insert(chunk)
        return self._table.steps - before

    def keep_pace(self, played: int, share: float) -> int:
        """Feed so that `share` of what is inserted comes from the store, `played` being what just came elsewhere."""
        self._due += played * share / (1.0 - share)
        if self._due < 1.0:
            return 0
        fed = self.feed(int(self._due))
        self._due = self._due - fed if fed else 0.0  # an empty store is asked again, not caught up with
        return fed

    def save(self) -> Tree:
        """Everything but the table."""
        return {
            "rng": rng_state(self._rng),
            "due": self._due,
            "steps": dict(self.steps),
            "unfit_chunks": self.unfit_chunks,
            "until_ms": self.until_ms,
            "uploaders": dict(self._uploaders),
        }

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        set_rng_state(self._rng, state["rng"])
        self._due, self.steps = state["due"], Counter(state["steps"])
        self.unfit_chunks, self.until_ms = state["unfit_chunks"], state["until_ms"]
        self._uploaders = dict(state["uploaders"])

    def _insert(self, chunk: Chunk) -> None:
        head = chunk.header
        if head.spec != self._game.hash:
            if not self.unfit_chunks:
                log.warning("chunks of %s with spec %s are left out", head.game, head.spec[:12])
            self.unfit_chunks += 1
            return
        number = self._uploaders.setdefault(head.uploader, len(self._uploaders) + 1)
        steps = replace(steps_of(chunk, self._stream), uploader=number)
        self._table.insert(steps)
        self._table.break_off(self._stream)
        self.steps[head.source] += head.steps
        self.until_ms = max(self.until_ms or 0, head.received_at_ms)


def steps_of(chunk: Chunk, stream: int) -> Steps:
    """A chunk's steps. Its last one has a successor only if the chunk says what was seen afterwards."""
    head, columns = chunk.header, chunk.columns
    ending = np.zeros(head.steps, np.uint8)
    ending[-1] = ENDINGS.index(head.ending)
    final = {
        name.removeprefix(_FINAL): np.asarray(column)[None]
        for name, column in columns.items()
        if name.startswith(_FINAL)
    }
    return Steps(
        stream=np.full(head.steps, stream, np.int64),
        observation={name: column for name, column in columns.items() if name.startswith("observation/")},
        action=columns["action"],
        reward=columns["reward"],
        ending=ending,
        legal=None if "legal" not in columns else columns["legal"].astype(bool),
        behaviour_logp=columns.get("behaviour_logp"),
        value=None,
        final=np.array([head.steps - 1] if final else [], np.int64),
        final_observation=final,
        source=SOURCES.index(head.source),
        episode=_number(head.episode, head.seat),
        position=head.first_step + np.arange(head.steps),
    )


def check_share(share: float) -> float:
    """`replay.store_share`, if a feeder can keep to it."""
    if not 0.0 < share < 1.0:
        do = "Set it between 0 and 1; --from store learns from the store alone"
        raise ConfigError(f"store_share = {share}", where="[replay]", do=do)
    return share


def _number(episode: str, seat: int) -> int:
    """The same for all chunks of one seat in one episode, and beyond what a table counts itself."""
    digest = hashlib.blake2b(f"{episode}/{seat}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") | 1 << 60
