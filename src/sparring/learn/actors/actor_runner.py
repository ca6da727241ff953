"""An actor that plays rollout after rollout, or block after block, with the weights it is given, in any process."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.games.protocol import Game
from sparring.learn.actors.actor_spec import ActorSpec, Ring
from sparring.learn.actors.initial_priorities import Said, with_priorities
from sparring.learn.actors.rollout_slots import RolloutRing
from sparring.learn.actors.weights import NONE, WeightsSnapshot
from sparring.nets.forward import forward_without_torch
from sparring.replay.steps import Steps
from sparring.wire.network import Weights
from sparring.wire.tree import pack, unpack


class WeightsReader(Protocol):
    """What an actor needs of either channel (weights.py)."""

    def new_past_selves(self, snapshot: WeightsSnapshot) -> Mapping[int, Weights]: ...


class ActorRunner:
    """The actor is opened with the first weights."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.actor: Actor | None = None
        self.opponents: Opponents | None = None
        self.version, self.epsilon = NONE, 0.0
        self._estimator = spec.open_estimator()
        self._held: list[Steps] = []  # ticks that were played and not handed over
        self._said: list[Said] = []

    def use(self, snapshot: WeightsSnapshot, reader: WeightsReader, game: Game | None = None) -> Actor:
        """The actor with these weights, and with the past selves that came with them."""
        if self.actor is None:
            self.actor, self.opponents = self.spec.open_actor(snapshot.weights, self._estimator, game)
            if self.spec.state:
                self.actor.load(unpack(self.spec.state))
        if snapshot.version != self.version:
            self.actor.use(forward_without_torch(self.spec.network, snapshot.weights), snapshot.version)
            self.version = snapshot.version
            self.epsilon = snapshot.epsilon if self.spec.epsilon is None else self.spec.epsilon
        assert self.opponents is not None
        for place, weights in reader.new_past_selves(snapshot).items():
            self.opponents.put(place, weights)
        return self.actor

    def save(self) -> bytes:
        """The actor, for a checkpoint; the learner has the past selves."""
        assert self.actor is not None
        return pack(self.actor.save())

    def play(self, out: Ring) -> None:
        """One rollout or block into a ring buffer that has room for it."""
        assert self.actor is not None
        if isinstance(out, RolloutRing):
            out.play(self.actor, self.version, self.spec.writer)
            return
        actor, spec, estimator = self.actor, self.spec, self._estimator
        env_steps, games = actor.env_steps, actor.episodes
        # Where priorities are estimated one tick is held back: its values bootstrap the steps before it.
        while len(self._held) < spec.ticks + (estimator is not None):
            self._held.append(actor.step(self.epsilon))
            if estimator is not None:
                self._said.append(estimator.last())
        ticks: Sequence[Steps] = self._held[: spec.ticks]
        if estimator is not None:
            ticks = with_priorities(ticks, self._said, spec.n_steps, spec.discount)
        self._held, self._said = self._held[spec.ticks :], self._said[spec.ticks :]
        env_steps, games = actor.env_steps - env_steps, actor.episodes - games
        out.write(ticks, actor.ended(), version=self.version, env_steps=env_steps, games=games)
