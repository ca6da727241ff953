"""single: the learner's own process plays.

    sim    actor ─► table ─ rate limiter ─► learner ─► actor    where the algorithm is fed with transitions or sequences
           actor ─► rollout ──────────────► learner ─► actor    where it is fed with trajectories
    mix    store ─ feeder ─► table                              beside either of them

Everything happens in turn in one thread, so a seed determines everything: for debugging and for small games.
"""

from sparring.acting.actor import NO_EPISODES
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.in_process import InProcessActor
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.learn.replay.local import InsertedBlock, LocalReplay
from sparring.learn.topologies.replay_loop import ReplayLoop
from sparring.learn.topologies.sync import SyncLoop
from sparring.nets import delta_conv
from sparring.replay.table import check_sources
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

FILLING_TICKS = 64  # of one iteration while nothing can be sampled yet


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner and actor; a table, with a rate limiter, for transitions; a feeder where the store is mixed in."""
    delta_conv.enable(plan.delta_conv)  # workers of hogwild and learners of allreduce begin here
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if plan.algorithm.feeds == "trajectories":
        ticks = plan.settings.rollout_ticks
        spec = actor_spec(plan, learner.network, feeds="rollouts", ticks=ticks, slots=1)
        return SyncLoop(plan, learner, InProcessActor(spec, learner), store)
    check_sources(plan.replay, records=store is not None)
    spec = actor_spec(plan, learner.network, feeds="steps", ticks=1, slots=1)
    actor = InProcessActor(spec, learner)
    replay = LocalReplay(plan, learner.network, spec.streams, store, actors=1, masks=actor.masks)
    return _SingleReplay(plan, learner, actor, replay, spec.streams)


class _SingleReplay(ReplayLoop):
    """One iteration: play until the rate limiter lets a batch through, then learn it."""

    def __init__(self, plan: Plan, learner: Learner, actor: InProcessActor, replay: LocalReplay, streams: int) -> None:
        super().__init__(plan, learner, replay, streams)
        self.actor, self._table = actor, replay

    def iterate(self) -> Iteration:
        for _ in range(FILLING_TICKS):
            if self._sampling_is_due() and (iteration := self.learn(self.actor.ended())) is not None:
                self.actor.publish(self.learner, self.env_steps)
                return iteration
            self._play()
        return Iteration(None, None, self.actor.ended(), self.flow())

    def _sampling_is_due(self) -> bool:
        """In one thread neither side waits: sample what is owed, and otherwise play, unless the limiter says no."""
        if not self.may_sample():
            return False
        limiter = self.rate_limiter
        return limiter.owed() >= self._batch_steps or not limiter.may_insert(self._insert_steps)

    def _play(self) -> None:
        actor = self.actor.newest()
        env_steps, games = actor.env_steps, actor.episodes
        steps = actor.step(self.plan.algorithm.exploration(self.learner, env_steps))
        fed = self._table.insert_steps(steps)
        env_steps, games = actor.env_steps - env_steps, actor.episodes - games
        self.count(InsertedBlock(NO_EPISODES, env_steps, games, len(steps), fed))

    def save(self) -> Tree:
        return super().save() | {"actor": self.actor.save()}

    def load(self, state: Tree) -> None:
        super().load(state)
        self.actor.load(state["actor"])
        if not self.plan.spec.resimulates:
            self.replay.break_off(0)  # its games have started again: nothing follows what came last
