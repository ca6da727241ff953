"""kinds: seats that see or do different things, each kind with a learner and a network of its own.

    games ─┬─► actor of kind 0 ─► rollout or table ─► learner 0 ─► actor 0
           └─► actor of kind 1 ─► rollout or table ─► learner 1 ─► actor 1
    store ─ feeder of its seats ─► table of each kind      with --from store alone, with --from mix beside the actors

The learner's own process plays: all actors decide, the games go on by one tick, each actor takes what its seats are
shown. What follows the actor is that of single (or offline), once for each kind, so a seed determines everything and a
resumed run learns what an unbroken one does. Kinds learn at the same time, from the same games, against and beside each
other's newest weights; there are no past selves. A critic that sees the joint view sees that of the whole game.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace as replace_field
from typing import Any

import numpy as np
from msgspec.structs import replace

from sparring.acting.actor import NO_EPISODES
from sparring.acting.rollout import Rollout
from sparring.games.catalogue import open_game
from sparring.games.joint_view import JointView, joint_spec
from sparring.games.seat_kinds import SharedGames, kind_names, of_seats
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import PlayedRollout, joined_episodes
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology, Update
from sparring.learn.replay.local import LocalReplay
from sparring.learn.topologies.offline import OfflineLoop
from sparring.learn.topologies.single import FILLING_TICKS, InProcessActor, SingleReplay
from sparring.learn.topologies.sync import SyncLoop
from sparring.nets import delta_conv
from sparring.replay.steps import Steps
from sparring.replay.table import check_sources
from sparring.store.protocol import Store
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

RECENT_RETURNS = 100  # of each kind, whose mean is a metric


def build(plan: Plan, store: Store | None) -> Topology:
    """A loop for each kind, all over the same games, or over the store's records of its seats."""
    delta_conv.enable(plan.delta_conv)
    plans = plan.kinds()
    learners = [_begin(one) for one in plans]
    if plan.source == "store":
        assert store is not None  # the plan says so
        return KindsOffline(plan, [OfflineLoop(*both, store) for both in zip(plans, learners, strict=True)])
    game = open_game(plan.game, plan.envs)
    games = SharedGames(JointView(game) if getattr(plan.algorithm, "joint", False) else game)
    rollouts = plan.algorithm.feeds == "trajectories"
    feeds, ticks = ("rollouts", plan.settings.rollout_ticks) if rollouts else ("steps", 1)
    actors = []
    for kind, (one, learner, part) in enumerate(zip(plans, learners, games.parts, strict=True)):
        shown = replace_field(one, spec=part.spec)  # with the joint view, where the game has it
        spec = replace(actor_spec(shown, learner.network, feeds=feeds, ticks=ticks, slots=1), actor=kind, repeat=False)
        actors.append(_KindActor(spec, learner, part))
    if rollouts:
        synced = [SyncLoop(*parts, store) for parts in zip(plans, learners, actors, strict=True)]
        return KindsOnPolicy(plan, synced, actors, games)
    check_sources(plan.replay, records=store is not None)
    loops = []
    for one, learner, actor in zip(plans, learners, actors, strict=True):
        streams = plan.envs * len(one.kind)
        replay = LocalReplay(one, learner.network, streams, store, actors=1, masks=actor.masks)
        loops.append(SingleReplay(one, learner, actor, replay, streams))
    return KindsReplay(plan, loops, actors, games)


def _begin(plan: Plan) -> Learner:
    """The learner of one kind."""
    if not getattr(plan.algorithm, "joint", False):
        return plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    assert plan.whole is not None  # of a part
    begin: Any = plan.algorithm.begin
    learner: Learner = begin(plan.spec, plan.settings, plan.seed, shown=of_seats(joint_spec(plan.whole), plan.kind))
    return learner


class _KindActor(InProcessActor):
    """The actor of one kind; who steps the games says when it has played a rollout."""

    _played: PlayedRollout

    def finish(self, rollout: Rollout, env_steps: int, games: int) -> None:
        """Close what was written; so many ticks and games were played before."""
        actor = self._actor
        batch, ended = actor.close_rollout(rollout), actor.ended()
        self._played = PlayedRollout(batch, ended, actor.env_steps - env_steps, actor.episodes - games, self._version)

    def take_all(self) -> PlayedRollout:
        return self._played


class _Kinds:
    """Loops that learn side by side. `parts`: each of them is a topology, too, with a plan of its own."""

    def __init__(self, plan: Plan, loops: Sequence[Topology]) -> None:
        self.plan, self.loops = plan, loops
        self.parts = list(zip(plan.kinds(), loops, strict=True))
        self.names = kind_names(plan.spec)
        self._returns: list[deque[float]] = [deque(maxlen=RECENT_RETURNS) for _ in loops]

    @property
    def learner(self) -> Learner:
        """That of the first kind."""
        return self.loops[0].learner

    @property
    def env_steps(self) -> int:
        return self.loops[0].env_steps

    @property
    def position(self) -> int:
        return self.loops[0].position

    @property
    def episodes(self) -> int:
        return self.loops[0].episodes

    def sources(self) -> Sources:
        """Of the first kind; each of `parts` has its own."""
        return self.loops[0].sources()

    def close(self) -> None:
        for loop in self.loops:
            loop.close()

    def save(self) -> Tree:
        return {"kinds": [loop.save() for loop in self.loops], "returns": [list(one) for one in self._returns]}

    def load(self, state: Tree) -> None:
        for loop, saved, held, returns in zip(self.loops, state["kinds"], self._returns, state["returns"], strict=True):
            loop.load(saved)
            held.extend(returns)

    def _joined(self, found: Sequence[Iteration | None]) -> Iteration:
        """What the kinds did, as one iteration: metrics are called KIND/NAME."""
        learned: dict[str, float] = {}
        flow: dict[str, float] = {}
        batch, updated = None, False
        for name, returns, one in zip(self.names, self._returns, found, strict=True):
            if one is None:
                continue
            returns.extend((one.episodes or NO_EPISODES).returns.tolist())
            flow |= {f"{name}/{key}": value for key, value in one.metrics.items()}
            if returns:
                flow[f"{name}/return_mean"] = float(np.mean(returns))
            if one.update is not None:
                updated = True
                metrics = {f"{name}/{key}": value for key, value in one.update.metrics.items()}
                if batch is None or not all(map(math.isfinite, metrics.values())):
                    batch = one.batch
                learned |= metrics
        if losses := [value for key, value in learned.items() if key.endswith("/loss")]:
            learned["loss"] = sum(losses) / len(losses)
        update = Update(self.learner, None, learned) if updated else None
        ended = joined_episodes(one.episodes for one in found if one is not None and one.episodes is not None)
        return Iteration(update, batch, ended, flow)


class KindsOffline(_Kinds):
    """One iteration: one batch of records for each kind."""

    def iterate(self) -> Iteration:
        return self._joined([loop.iterate() for loop in self.loops])


class _KindsPlay(_Kinds):
    """Kinds that play the same games."""

    def __init__(self, plan: Plan, loops: Sequence[Topology], actors: Sequence[_KindActor], games: SharedGames) -> None:
        super().__init__(plan, loops)
        self._actors, self._games = actors, games

    def _tick(self) -> list[Steps]:
        """All games go on by one decision; the steps that this closed, of each kind, with what was seen in stacks."""
        explore = self.plan.algorithm.exploration
        playing = [actor.newest() for actor in self._actors]
        epsilons = [explore(loop.learner, one.env_steps) for loop, one in zip(self.loops, playing, strict=True)]
        actions = [one.decide(epsilon) for one, epsilon in zip(playing, epsilons, strict=True)]
        view = self._games.step(actions)
        over: Array = view.over
        for one in playing:
            one.env_steps += self._games.game.n
        return [one.take(part.shown(view), over) for one, part in zip(playing, self._games.parts, strict=True)]


class KindsOnPolicy(_KindsPlay):
    """One iteration: a rollout, in which every kind has its trajectories, and an update of each."""

    def iterate(self) -> Iteration:
        playing = [actor.newest() for actor in self._actors]
        before = [(one.env_steps, one.episodes) for one in playing]
        ticks: int = self.plan.settings.rollout_ticks
        rollouts = [one.open_rollout(ticks, None) for one in playing]
        for _ in range(ticks):
            for one, rollout, steps in zip(playing, rollouts, self._tick(), strict=True):
                one.write(rollout, steps)
        for actor, rollout, counted in zip(self._actors, rollouts, before, strict=True):
            actor.finish(rollout, *counted)
        return self._joined([loop.iterate() for loop in self.loops])


class KindsReplay(_KindsPlay):
    """One iteration: play until the rate limiter of any kind lets a batch through, then learn those that may."""

    loops: Sequence[SingleReplay]

    def iterate(self) -> Iteration:
        for _ in range(FILLING_TICKS):
            found = [self._learn(loop, actor) for loop, actor in zip(self.loops, self._actors, strict=True)]
            if any(one is not None for one in found):
                return self._joined(found)
            self._play()
        flows = (Iteration(None, None, actor.ended(), loop.flow()) for actor, loop in self._pairs())
        return self._joined(list(flows))

    def _pairs(self) -> Iterable[tuple[_KindActor, SingleReplay]]:
        return zip(self._actors, self.loops, strict=True)

    def _learn(self, loop: SingleReplay, actor: _KindActor) -> Iteration | None:
        iteration = loop.learn(actor.ended()) if loop.sampling_is_due() else None
        if iteration is not None:
            actor.publish(loop.learner, loop.env_steps)
        return iteration

    def _play(self) -> None:
        playing = [actor.newest() for actor in self._actors]
        before = [(one.env_steps, one.episodes) for one in playing]
        for loop, one, steps, (ticks, games) in zip(self.loops, playing, self._tick(), before, strict=True):
            loop.insert(one.in_frames(steps), one.env_steps - ticks, one.episodes - games)
