"""What a node does for a parent: it checks the job, learns by the topology of one machine, and exchanges weights.

A job is data. The node builds the network of the terms, which are data too, compares its parameters with their layout
before it reserves memory for them, and refuses a job that names code: a module, a network, policy,
optimiser or algorithm of the parent's own. It plays built-in games, `gym:`, `atari:` and `spiel:` games by their plain
names, and what `games` in its own spar.toml lists.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from sparring.config import Config
from sparring.errors import Refused, SparringError
from sparring.games.catalogue import BUILT_IN
from sparring.learn.algorithms import ALGORITHMS
from sparring.learn.plan import NODE_ALGORITHMS, Plan, from_record
from sparring.learn.topologies import build
from sparring.nets.policies import BUILT_IN as POLICIES
from sparring.nets.shapes import parameters
from sparring.nodes.codecs import Codec, Layout, Sender
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.leases import LeasePlayer, model_hash, packed
from sparring.nodes.merge_rules import read_rule
from sparring.nodes.messages import MAX_RETURNS, Contribution, Experience, Job, Lease, Weights, disagreement, terms_of
from sparring.wire.chunk import Array

MAX_ENVS = 4_096
MAX_WAIT_S = 3_600.0
MAX_LEASE_TICKS = 1 << 16
_PLAIN_GAME = re.compile(r"(gym|atari|spiel):[A-Za-z0-9_./-]+")
_TOPOLOGY = {"a3c": ("hogwild", "hogwild"), "ppo": ("single", "sync"), "dqn": ("single", "apex")}  # one worker, several


def check_job(job: Job, config: Config) -> None:
    """Refused where a node must not do it: it names code, or asks for too much."""
    plan, settings = job.plan, job.plan.get("settings")
    wrong = ""
    if job.game not in BUILT_IN and job.game not in config.games and not _PLAIN_GAME.fullmatch(job.game):
        wrong = f"it plays no {job.game[:80]!r}: its own spar.toml does not list it under `games`"
    elif plan.get("algo") not in NODE_ALGORITHMS or plan.get("algo") not in ALGORITHMS:
        wrong = f"it does not learn {str(plan.get('algo'))[:80]!r}"
    elif not isinstance(settings, dict) or settings.get("network") or job.terms.network.module is not None:
        wrong = "the job names a network of the parent's own, and nodes take no code"
    elif ":" in str(settings.get("optimiser", "")):
        wrong = "the job names an optimiser of the parent's own, and nodes take no code"
    elif plan.get("policy") not in POLICIES:
        wrong = "the job names a policy of the parent's own, and nodes take no code"
    elif not isinstance(plan.get("envs"), int) or not 1 <= plan["envs"] <= MAX_ENVS:
        wrong = f"the job asks for {plan.get('envs')!r} games at once, the limit is {MAX_ENVS}"
    elif plan.get("source") != "sim":
        wrong = "it learns from simulation alone"
    elif not 0 < job.exchange_s <= MAX_WAIT_S:
        wrong = f"the job asks for an exchange every {job.exchange_s:g} s"
    if wrong:
        raise Refused(wrong, where="this node", do="Change the run, or the node's spar.toml")
    try:
        shapes = tuple(parameters(job.terms.network).items())
    except (SparringError, LookupError, ValueError, ArithmeticError) as error:
        raise Refused(f"it cannot build the network: {error}", where="this node", do="Use the same version") from None
    if Layout(shapes).byte_length > config.nodes.max_message_bytes:
        wrong = f"its network has {Layout(shapes).byte_length} bytes, above this node's nodes.max_message_bytes"
        raise Refused(wrong, where="this node", do="Raise it, or let the run use a smaller network")


@contextmanager
def told_as_refusal() -> Iterator[None]:
    """What cannot be built of a job is refused."""
    try:
        yield
    except SparringError as error:
        raise Refused(f"it cannot learn this: {error.wrong}", where="this node", do=error.do) from None


def plan_of(job: Job, workers: int) -> Plan:
    """The run's plan as this machine carries it out, with the network of the terms."""
    network = msgspec.json.encode(job.terms.network).decode()
    record: dict[str, Any] = job.plan | {"settings": job.plan["settings"] | {"network": network}}
    record |= {"topology": _TOPOLOGY[record["algo"]][workers > 1], "actors": workers, "on": "local://", "learners": 1}
    try:
        with told_as_refusal():
            return from_record(job.game, job.seed, record, Config())
    except (LookupError, TypeError, ValueError) as error:
        wrong = f"the job's plan is of another version of Sparring: {error!r}"
        raise Refused(wrong, where="this node", do="Use the same version on both sides") from None


class Play:
    """A job that asks for experience: leases are played when they come (leases.py)."""

    iterates = False

    def __init__(self, job: Job, config: Config) -> None:
        """As `Work`."""
        check_job(job, config)
        plan = plan_of(job, 1)
        if plan.algorithm.feeds not in ("trajectories", "transitions") or job.lease_ticks > MAX_LEASE_TICKS:
            wrong = f"it plays no leases of {job.lease_ticks} ticks for {plan.algo}"
            raise Refused(wrong, where="this node", do="Change the run")
        with told_as_refusal():
            network = plan.algorithm.begin(plan.spec, plan.settings, 0).network
        self.job, self.version = job, -1
        self.layout = Layout(tuple(parameters(network).items()))
        self.codec = Codec(job.terms.codec, self.layout)
        self.terms = terms_of(plan.spec, network, self.codec.name, str(read_rule(job.terms.merge)))
        if sentence := disagreement(job.terms, self.terms):
            raise Refused(sentence, where="this node", do="Use the same versions on both sides")
        self._player, self._base = LeasePlayer(plan, network, job.lease_ticks), np.zeros(0, np.float32)

    def fits(self, job: Job) -> bool:
        return job == self.job

    def take(self, given: Weights) -> None:
        """Whole weights, first of all."""
        self._base, self.version = whole_weights(given, self.job), given.version

    def play(self, lease: Lease) -> Experience:
        """What was played with a lease."""
        given = lease.weights
        if given.whole:
            self._base = whole_weights(given, self.job)
        elif given.payload:
            self._base = self.codec.decode(given.payload, self._base)
        self.version = given.version
        if model_hash(self._base) != lease.model:
            raise Refused("the weights of a lease have another hash", where="the parent", do="Connect again")
        began = time.monotonic()
        raw = self._player.play(self.layout, self._base, lease.seed, self.version, lease.epsilon)
        steps = self._player.games * self.job.lease_ticks
        return Experience(lease.lease, lease.model, packed(raw), steps / max(1e-3, time.monotonic() - began))

    def close(self) -> None:
        self._player.close()


def whole_weights(given: Weights, job: Job) -> Array:
    """The weights in a first message; Refused where they are not as long as the layout."""
    if len(given.payload) != job.terms.byte_length:
        wrong = f"whole weights of {len(given.payload)} bytes, the layout has {job.terms.byte_length}"
        raise Refused(wrong, where="the parent", do="Use the same version on both sides")
    return np.frombuffer(given.payload, "<f4").astype(np.float32)


class Work:
    """One job under way. All of it happens in the node's main thread."""

    iterates = True

    def __init__(self, job: Job, config: Config, workers: int) -> None:
        """Refused where the job must not be done, or its terms are not those that this node makes of it."""
        check_job(job, config)
        plan = plan_of(job, workers)
        self.job = job
        with told_as_refusal():
            self.topology = build(plan, None)
        try:
            self.weights = LearnerWeights(self.topology.learner)
            self.rule, self.codec = read_rule(job.terms.merge), Codec(job.terms.codec, self.weights.layout)
            self.terms = terms_of(plan.spec, self.topology.learner.network, self.codec.name, str(self.rule))
            if sentence := disagreement(job.terms, self.terms):
                raise Refused(sentence, where="this node", do="Use the same versions on both sides")
        except BaseException:
            self.topology.close()
            raise
        self.sender = Sender(self.codec, job.momentum)
        self.version, self._base, self._sent = -1, np.zeros(0, np.float32), np.zeros(0, np.float32)
        self._returns: deque[float] = deque(maxlen=MAX_RETURNS)
        self._told = (0, 0, 0, time.monotonic())  # steps, updates, episodes and when, of the last contribution
        self.refused: dict[str, int] = {}

    def fits(self, job: Job) -> bool:
        """Whether that is the job which is under way, after a reconnection."""
        return (job.run, job.terms, job.plan) == (self.job.run, self.job.terms, self.job.plan)

    def iterate(self) -> None:
        ended = self.topology.iterate().episodes
        if ended is not None:
            self._returns.extend(ended.returns.tolist())

    def contribution(self) -> Contribution | None:
        """What was learned since the parent's last weights; None: nothing yet."""
        self._sent = weights = self.weights.read()
        if self.topology.learner.updates == self._told[1]:
            return None
        encode = self.sender.encode if self.rule.pull is None else self.codec.encode
        payload = encode(weights, self._base)
        topology, now = self.topology, time.monotonic()
        counts = (topology.env_steps, topology.learner.updates, topology.episodes)
        steps, updates, episodes = (new - old for new, old in zip(counts, self._told[:3], strict=True))
        rate = steps / max(1e-3, now - self._told[3])
        returns, self._told = tuple(self._returns), (*counts, now)
        self._returns.clear()
        return Contribution(self.version, payload, steps, updates, episodes, returns, rate)

    def take(self, given: Weights) -> None:
        """Go on from the parent's weights, as the merge rule says; what was learned meanwhile is kept."""
        if given.whole:
            self._begin(given)
            return
        if not given.payload:  # nothing new
            return
        self._base = base = self.codec.decode(given.payload, self._base)
        self.version = given.version
        if given.refused:
            self.refused[given.refused] = self.refused.get(given.refused, 0) + 1
            self._start_from(base)
        elif self.rule.pull is None:
            self.weights.add(base - self._sent)
        elif self.rule.pull:
            self.weights.add(np.float32(self.rule.pull) * (base - self.weights.read()))

    def close(self) -> None:
        self.topology.close()

    def _begin(self, given: Weights) -> None:
        """Whole weights: of a new job, or after a reconnection. What was learned alone counts if it is not too old."""
        whole = whole_weights(given, self.job)
        before, held = self._base, self.version >= 0
        self._base, self.version = whole, given.version
        if not held or given.missed > self.job.max_staleness or not np.isfinite(self.weights.read()).all():
            self._start_from(self._base)
        elif self.rule.pull is None:
            self.weights.add(self._base - before)
        else:
            self.weights.add(np.float32(self.rule.pull) * (self._base - self.weights.read()))

    def _start_from(self, base: Array) -> None:
        self.weights.write(base)
        self.sender.forget()
