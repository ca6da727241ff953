"""Learning from replay: insert, limit the rate, sample, update, write priorities back. For single, apex and central."""

from collections import Counter

from sparring.acting.actor import Episodes
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources
from sparring.learn.replay.local import InsertedBlock, Replay
from sparring.replay.rate_limiter import open_rate_limiter
from sparring.wire.tree import Tree


class ReplayLoop:
    """A learner and its replay. `insert_steps` is the most that one insert brings."""

    def __init__(self, plan: Plan, learner: Learner, replay: Replay, insert_steps: int) -> None:
        self.plan, self.learner, self.replay, self._insert_steps = plan, learner, replay, insert_steps
        self._batch_steps = draw_for(plan.algorithm, plan.settings).steps
        config = plan.replay
        self.rate_limiter = open_rate_limiter(
            config.samples_per_insert,
            config.min_steps,
            config.slack_samples,
            insert_steps=insert_steps,
            batch_steps=self._batch_steps,
        )
        self.env_steps = self.episodes = 0  # that were inserted
        self.played: Counter[str] = Counter()

    @property
    def position(self) -> int:
        return self.env_steps

    def count(self, block: InsertedBlock) -> None:
        """Count an inserted block: the rate limiter must know of each before the next one."""
        self.env_steps += block.env_steps
        self.episodes += block.games
        self.played["selfplay"] += block.steps
        self.rate_limiter.insert(block.steps + block.fed)

    def may_sample(self) -> bool:
        """Whether a batch can be sampled, and the rate limiter permits it."""
        return self.replay.ready() and self.rate_limiter.may_sample(self._batch_steps)

    def learn(self, ended: Episodes) -> Iteration | None:
        """One update; None where its batch is still on its way. `ended` are the games that ended meanwhile."""
        if (found := self.replay.sample()) is None:
            return None
        batch, rows = found
        stale = 0.0 if batch.version is None else float(self.learner.updates - batch.version.mean())
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.replay.learned(rows, update.priorities)
        self.rate_limiter.sample(self._batch_steps)
        return Iteration(update, batch, ended, self.flow() | {"staleness_updates": stale})

    def flow(self) -> dict[str, float]:
        """How the rate limiter and replay stand."""
        return self.rate_limiter.flow() | self.replay.flow()

    def sources(self) -> Sources:
        feeder = self.replay.feeder
        fed = Counter() if feeder is None else feeder.steps
        return Sources(dict(self.played + fed), None if feeder is None else feeder.until_ms)

    def close(self) -> None:
        self.replay.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "replay": self.replay.save(),
            "rate_limiter": [self.rate_limiter.inserted, self.rate_limiter.sampled],
            "played": dict(self.played),
            "env_steps": self.env_steps,
            "episodes": self.episodes,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.replay.load(state["replay"])
        self.rate_limiter.inserted, self.rate_limiter.sampled = state["rate_limiter"]
        self.played = Counter(state["played"])
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
