"""central: environments alone play and one service decides for all; what it hands over is what happened."""

import dataclasses
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import pytest
from hosted_runs import ON_POLICY as SMALL
from hosted_runs import REPLAYED
from msgspec.structs import replace

from sparring.acting.opponents import Opponents
from sparring.errors import Unreachable
from sparring.games import cartpole
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import joined as joined_steps
from sparring.learn.actors.experience import played
from sparring.learn.actors.inference_service import ACT, HOLD, RESET, EnvService, InferenceService
from sparring.learn.actors.weights import WeightsSnapshot
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.replay.local import open_replay_table
from sparring.learn.topologies.apex import block_spec
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import log_softmax
from sparring.services.executor import joined, parted

STATE = "observation/state"


def planned(config, game="cartpole", algo="ppo", settings=SMALL, actors=2, envs=4, on="local://", **wish):
    return plan(
        TrainRequest(
            game, algo, topology="central", actors=actors, envs=envs, settings=settings, on=on, steps=10**6, **wish
        ),
        config,
    )


class Beside:
    """An inference service in this process, asked by environments in this process; it keeps what was said."""

    def __init__(self, agreed, slots=8, part=None):
        self.learner = agreed.algorithm.begin(agreed.spec, agreed.settings, agreed.seed)
        if part is None:
            ticks = agreed.settings.rollout_ticks
            self.part = actor_spec(agreed, self.learner.network, feeds="rollouts", ticks=ticks, slots=slots)
        else:
            self.part = replace(part(agreed, self.learner), n_steps=0)
        self.workers = agreed.actors
        self.spec, self.seat = agreed.spec, agreed.spec.seats[0]
        self.told, self.weights = [], {}
        self.begin()

    def begin(self):
        """A service without weights, as one that takes a dead one's place."""
        whole = replace(self.part, envs=self.workers * self.part.envs)
        self.inference = InferenceService(whole.encode(), self.workers, weights=self)

    def environments(self, worker, generation=0):
        return EnvService(self.part.encode(), worker, generation, solver=self)

    def use(self, version, shift=0.0):
        weights = {name: one + np.float32(shift) for name, one in self.learner.weights().items()}
        self.weights[version] = weights
        self.version = version
        self.inference.use(version)

    def at_least(self, version):
        return WeightsSnapshot(version, self.weights[version], 0.0)

    def new_past_selves(self, snapshot):
        return {}

    def retrieve(self, service, verb, /, *args):
        assert (service, verb) == ("inference", "act")
        if self.workers == 1:
            return self.inference.act(*args)
        answer = parted(self.inference.act(*joined([args])), 1, "act")[0]
        self.told.append(int(answer["status"]))
        return answer

    def taken(self):
        """Every rollout that is whole."""
        found = []
        while (columns := self.inference.take(self.version)["columns"]) is not None:
            found.append(played(columns))
        return found

    def close(self):
        inference, self.inference = self.inference, None
        if inference is not None:
            inference.close()


@contextmanager
def beside(*args, **keys):
    made = Beside(planned(*args, **keys))
    try:
        yield made
    finally:
        made.close()


def ticks(crew):
    """How many of them went on, each asked once."""
    return sum(one.tick() for one in crew)


def check_physics(rollouts):
    """Every step leads to the next of its stream as CartPole moves, or to an end; how many were looked at."""
    looked, last = 0, None
    for one in rollouts:
        batch, seen = one.batch, one.batch.observation[STATE]
        length = batch.mask.sum(axis=0)
        for stream in range(len(length)):
            n = int(length[stream])
            if last is not None and n and last[2][stream] == RUNNING and last[3][stream]:
                assert np.array_equal(last[0][stream], seen[0, stream])  # the next rollout goes on where this ended
            after = np.concatenate([seen[1:n, stream], batch.next_observation[STATE][stream : stream + 1]])
            force = np.where(batch.action[:n, stream] == 1, cartpole.FORCE, -cartpole.FORCE)
            moved = cartpole._moved(seen[:n, stream].astype(np.float64), force)
            ending = batch.ending[:n, stream]
            runs = ending == RUNNING
            assert np.allclose(moved[runs], after[runs], atol=1e-5)
            fallen = (np.abs(moved[:, 0]) > cartpole.MAX_POSITION) | (np.abs(moved[:, 2]) > cartpole.MAX_ANGLE)
            assert (fallen == (ending == TERMINATED)).all()
            assert (np.abs(after[ending == TERMINATED]) < 0.06).all()  # another game has begun
            assert (batch.reward[:n, stream] == 1.0).all()
            looked += n
        ends = np.array([batch.ending[max(0, n - 1), s] for s, n in enumerate(length)])
        last = (batch.next_observation[STATE], None, ends, length > 0)
    return looked


@pytest.mark.parametrize("actors", [1, 3])
def test_what_is_handed_over_is_what_happened(actors, config):
    """Whether workers come together or one at a time, in any order."""
    with beside(config, actors=actors) as made:
        made.use(0)
        crew, rng = [made.environments(worker) for worker in range(actors)], np.random.default_rng(0)
        for _ in range(100 * actors):
            crew[rng.integers(actors)].tick()
        rollouts = made.taken()
        assert len(rollouts) >= 5
        assert check_physics(rollouts) > 200
        assert sum(one.games for one in rollouts) == sum(len(one.episodes.returns) for one in rollouts) > 3
        forward = NumpyForward(made.learner.network, made.weights[0])
        for one in rollouts:
            mask = one.batch.mask
            out = forward({STATE: one.batch.observation[STATE][mask]})
            logp = log_softmax(out["logits"])[np.arange(mask.sum()), one.batch.action[mask]]
            assert np.allclose(logp, one.batch.behaviour_logp[mask], atol=1e-5)
            assert np.allclose(out["value"], one.batch.value[mask], atol=1e-5)
            assert one.version == 0


def test_newer_weights_decide_from_the_next_tick_on_and_the_rollout_says_the_oldest(config):
    with beside(config, actors=1) as made:
        crew, boundary = made.environments(0), 24  # in the middle of the second rollout
        for tick in range(16 * 3 + 1):
            if tick in (0, boundary):
                made.use(tick, shift=0.05 * bool(tick))
            crew.tick()
        rollouts = made.taken()
        assert [one.version for one in rollouts] == [0, 0, boundary]
        for first, one in enumerate(rollouts):
            for row in range(16):
                version = 0 if first * 16 + row < boundary else boundary
                out = NumpyForward(made.learner.network, made.weights[version])(
                    {STATE: one.batch.observation[STATE][row]}
                )
                logp = log_softmax(out["logits"])[np.arange(4), one.batch.action[row]]
                assert np.allclose(logp, one.batch.behaviour_logp[row], atol=1e-5)


def test_nothing_is_joined_across_the_death_of_a_worker(config):
    with beside(config, actors=2) as made:
        made.use(0)
        crew = [made.environments(worker) for worker in range(2)]
        for tick in range(100):
            if tick == 41:
                crew[0] = made.environments(0, generation=1)
            for one in crew:
                one.tick()
        rollouts = made.taken()
        assert check_physics(rollouts) > 300
        cut = [one.batch.ending == TRUNCATED for one in rollouts]
        assert sum(int(one.sum()) for one in cut) == 4  # of the games of one worker
        held = [one.batch.truncation_value[ends] for one, ends in zip(rollouts, cut, strict=True)]
        assert np.abs(np.concatenate(held)).min() > 0  # what came after was worth something
        assert set(made.told) == {ACT}


def test_a_service_that_took_a_dead_ones_place_has_all_begin_anew(config):
    with beside(config, actors=2) as made:
        made.use(0)
        crew = [made.environments(worker) for worker in range(2)]
        for _ in range(20):
            assert ticks(crew) == 2
        made.close()
        made.begin()
        assert ticks(crew) == 0
        assert made.told[-2:] == [HOLD, HOLD]  # it has no weights yet
        made.use(7)
        assert ticks(crew) == 0
        assert made.told[-2:] == [RESET, RESET]
        for _ in range(40):
            assert ticks(crew) == 2
        rollouts = made.taken()
        assert [one.version for one in rollouts] == [7, 7]
        assert check_physics(rollouts) == 2 * (16 + 15) * 4  # whole when the first has 16 ticks


def test_workers_are_held_where_too_many_rollouts_wait(config):
    made = Beside(planned(config, actors=1), slots=2)
    made.use(0)
    crew = made.environments(0)
    assert sum(crew.tick() for _ in range(60)) == 2 * 16 + 1
    assert len(made.taken()) == 2
    assert crew.tick()
    made.close()


def test_a_lost_call_begins_new_games(config, monkeypatch):
    with beside(config, actors=1) as made:
        made.use(0)
        crew = made.environments(0)
        for tick in range(100):
            if tick == 37:
                with monkeypatch.context() as broken:

                    def gone(*_):
                        raise Unreachable("it is gone", where="inference", do="Wait")

                    broken.setattr(made, "retrieve", gone)
                    assert not crew.tick()
            crew.tick()
        assert check_physics(made.taken()) > 300


@pytest.mark.parametrize("game", ["connect-four", "recall_game:recall"])
def test_seats_and_memories_are_kept_for_each_environment(game, config):
    memory = () if game == "connect-four" else ("memory=gru:8",)
    settings = (*SMALL, *memory, *(('image_layers=["flat"]',) if game == "connect-four" else ()))
    alone = dataclasses.replace(config, train=dataclasses.replace(config.train, script_share=0.0))
    with beside(alone, game=game, settings=settings) as made:
        made.use(0)
        crew, rng = [made.environments(worker) for worker in range(2)], np.random.default_rng(1)
        for _ in range(150):
            crew[rng.integers(2)].tick()
        rollouts = made.taken()
        forward = NumpyForward(made.learner.network, made.weights[0])
        state = None
        ends = defaultdict(list)
        for one in rollouts:
            batch = one.batch
            if memory:
                assert state is None or np.array_equal(state[one.batch.mask[0]], batch.state[one.batch.mask[0]])
                state = batch.state.copy()
            for row in range(len(batch.reward)):
                here = np.flatnonzero(batch.mask[row])
                seen = {leaf: column[row, here] for leaf, column in batch.observation.items()}
                out = forward(seen, None if state is None else state[here])
                logits = (
                    out["logits"] if batch.legal is None else np.where(batch.legal[row, here], out["logits"], -np.inf)
                )
                logp = log_softmax(logits)[np.arange(len(here)), batch.action[row, here]]
                assert np.allclose(logp, batch.behaviour_logp[row, here], atol=1e-4)
                over = batch.ending[row, here] != RUNNING
                if state is not None:
                    state[here] = np.where(over[:, None], 0.0, out["state"])
                for stream, reward in zip(here[over], batch.reward[row, here][over], strict=True):
                    ends[int(stream)].append(float(reward))
        if memory:
            assert np.abs(state).max() > 0
        else:
            for place in range(8):  # the loser's last step carries its loss
                pairs = list(zip(ends[place], ends[8 + place], strict=False))
                assert all(mine == -theirs for mine, theirs in pairs)
            assert sum(map(len, ends.values())) > 4


def test_what_games_against_others_came_to_is_noted_as_it_was(config, monkeypatch):
    """A league goes by it: it is known to the worker that played, and to nobody else."""
    noted = []
    monkeypatch.setattr(Opponents, "note", lambda self, rivals, scores: noted.extend(scores.tolist()))
    past = dataclasses.replace(config.train, script_share=0.0, opponent_share=1.0)
    settings = (*SMALL, 'image_layers=["flat"]')
    with beside(dataclasses.replace(config, train=past), game="connect-four", settings=settings) as made:
        made.new_past_selves = lambda snapshot: {0: made.weights[0]}
        made.use(0)
        crew, rng, rollouts = [made.environments(worker) for worker in range(2)], np.random.default_rng(1), []
        for _ in range(200):
            crew[rng.integers(2)].tick()
            rollouts += made.taken()
    earned = np.concatenate([one.episodes.returns[one.episodes.against_others] for one in rollouts])
    told = sorted(noted[: len(earned)])  # games that end in one tick are in another order
    assert told == sorted((one + 1.0) / 2 for one in earned.tolist())
    assert {0.0, 1.0} <= set(told)


def with_replay(config, **keys):
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, **keys))


def test_what_replay_takes_in_is_what_happened_too(config):
    """A worker that is begun anew breaks the streams off; nothing else is lost."""
    agreed = planned(config, algo="dqn", settings=REPLAYED, actors=2)
    made = Beside(agreed, part=block_spec)
    made.use(0)
    whole = replace(made.part, envs=2 * made.part.envs)
    table = open_replay_table(agreed, made.learner.network, 5000, whole.streams + 1)
    crew, rng, breaks = [made.environments(worker) for worker in range(2)], np.random.default_rng(2), 0
    kept = 0
    for tick in range(600):
        if tick in (200, 333):
            crew[0] = made.environments(0, generation=tick)
        crew[rng.integers(2)].tick()
        said = made.inference.take(made.version)
        if said["columns"] is not None:
            if said["broken"]:
                breaks += 1
                for stream in range(8):
                    table.break_off(stream)
            steps = joined_steps(said["columns"], made.seat).steps
            table.insert(steps)
            kept += len(steps)
    made.close()
    assert breaks <= 6
    batch, _ = table.sample(3000, np.random.default_rng(0), n_steps=1, discount=0.99)
    goes_on = batch.ending != TERMINATED
    force = np.where(batch.action == 1, cartpole.FORCE, -cartpole.FORCE)
    moved = cartpole._moved(batch.observation[STATE].astype(np.float64), force)
    assert np.allclose(moved[goes_on], batch.next_observation[STATE][goes_on], atol=1e-5)
    fallen = (np.abs(moved[:, 0]) > cartpole.MAX_POSITION) | (np.abs(moved[:, 2]) > cartpole.MAX_ANGLE)
    assert (fallen == ~goes_on).all()
    assert kept > 2000
