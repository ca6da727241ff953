"""nodes: other machines play and learn; this process merges what they learned.

    node: workers ─► θ of the node ─┐  delta, by a codec    ┌─ θ of the run
    node: workers ─► θ of the node ─┼──── wss ──► merge ───►│
    node: workers ─► θ of the node ─┘  ◄──── θ, by a codec ─┘  ◄── the training loop: counts, checkpoints, models

The topology of the run is here; a node learns by the topology that its algorithm has on one machine (child.py). Nodes
come and go while it runs. An iteration ends when something was merged, or after ITERATION_S.
"""

import logging
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from sparring.acting.actor import Episodes
from sparring.config import open_data_folder
from sparring.errors import ConfigError
from sparring.gateway.connections import bound
from sparring.learn.plan import NodesPlan, Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology, Update
from sparring.nodes.board import Board
from sparring.nodes.codecs import Codec
from sparring.nodes.experience import ExperienceLoop, ExperienceSessions, ReplayExperienceLoop
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.leases import LeasePlayer
from sparring.nodes.link import Address, Door, Tokens, admission, read_address, read_place, server_tls, shown_host
from sparring.nodes.merge_rules import Limits, Merger, read_rule
from sparring.nodes.messages import Job, terms_of
from sparring.nodes.sessions import NodeSessions, Progress
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

log = logging.getLogger(__name__)

ITERATION_S = 0.1  # at most


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner that merges, and the door through which nodes come; they are let in with the first iteration."""
    if plan.nodes is None:
        raise ConfigError("it needs nodes", where="--topology nodes", do="Give --nodes URL or --accept-nodes HOST:PORT")
    addresses = [read_address(text, "--nodes") for text in plan.nodes.dial]
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if learner.network.module is not None:
        wrong = "nodes never receive code, and this network is code"
        do = "Return a NetworkSpec, which is data, or learn on one machine"
        raise ConfigError(wrong, where=f"network {plan.settings.network!r}", do=do)
    opened = _Opened(plan, learner, addresses, plan.nodes)
    return _Nodes(plan, learner, opened) if plan.nodes.config.contribute == "weights" else opened.experience_loop()


class _Opened:
    """What both kinds of run with nodes have: terms, weights to merge into, connections, and the door."""

    def __init__(self, plan: Plan, learner: Learner, addresses: list[Address], about: NodesPlan) -> None:
        self.plan, self.learner, self._addresses, self._about = plan, learner, addresses, about
        self.weights = LearnerWeights(learner)
        config, rule = about.config, read_rule(about.config.merge)
        codec = Codec(config.codec, self.weights.layout).name
        self._terms, self._run = terms_of(plan.spec, learner.network, codec, str(rule)), secrets.token_hex(8)
        limits = Limits(config.max_staleness, config.max_norm, config.norm_factor)
        open_data_folder(Path(about.data))
        self.merger = Merger(rule, self.weights.read(), limits)
        kind = NodeSessions if config.contribute == "weights" else ExperienceSessions
        self.sessions = kind(self._job, self.merger, config, Board(about.data))
        self._sockets = ExitStack()
        self._door = self._open_door() if about.accept else None

    def start(self) -> None:
        """Let nodes in."""
        self.sessions.start(self._addresses, self._door)
        log.info("waiting for nodes …")

    def close(self) -> None:
        self.sessions.stop()
        self._sockets.close()

    def experience_loop(self) -> Topology:
        assert isinstance(self.sessions, ExperienceSessions)
        player = LeasePlayer(self.plan, self.learner.network, self._about.config.lease_ticks)
        self.sessions.prepare(player.raw_bytes)
        loop = ExperienceLoop if self.plan.algorithm.feeds == "trajectories" else ReplayExperienceLoop
        return loop(self.plan, self.learner, self.sessions, player, (self.start, self.close))

    def _job(self, number: int) -> Job:
        seed = int(np.random.SeedSequence([self.plan.seed, 0x40DE, number]).generate_state(1)[0])
        config, record = self._about.config, self.plan.record()
        record["settings"]["network"] = ""  # the terms have it as data
        return Job(
            run=self._run,
            game=self.plan.game,
            terms=self._terms,
            plan=record,
            seed=seed,
            exchange_s=config.exchange_s,
            max_staleness=config.max_staleness,
            momentum=config.topk_momentum,
            lease_ticks=config.lease_ticks if config.contribute == "experience" else 0,
        )

    def _open_door(self) -> Door:
        about = self._about
        host, port = read_place(about.accept, "--accept-nodes")
        tokens = Tokens(Path(about.data) / "nodes")
        tls, mark = server_tls(Path(about.data) / "nodes", host, about.cert, about.key)
        listening: socket.socket = self._sockets.enter_context(bound(host, port, "--accept-nodes", "port 0"))
        address = Address(shown_host(host), listening.getsockname()[1], tokens.read(), True, mark)
        log.info(f"machines join with: spar node --join '{address}'")
        self.sessions.address = address
        return Door(listening, tls, admission(tokens, about.data))


class _Nodes:
    """The run's thread where weights are contributed: it waits for merges and hands them to the training loop."""

    def __init__(self, plan: Plan, learner: Learner, opened: _Opened) -> None:
        self.plan, self.learner, self._opened, self._started = plan, learner, opened, False
        self._weights, self.merger, self.sessions = opened.weights, opened.merger, opened.sessions
        self._counted = np.zeros(4, np.int64)  # steps, updates, episodes, contributions

    @property
    def env_steps(self) -> int:
        return int(self._counted[0])

    @property
    def position(self) -> int:
        return int(self._counted[0])

    @property
    def episodes(self) -> int:
        return int(self._counted[2])

    def sources(self) -> Sources:
        return Sources({"node": int(self._counted[0])}, None)

    def iterate(self) -> Iteration:
        """Wait until something was merged, and take it over."""
        if not self._started:
            self._started = True
            self._opened.start()
        self.sessions.check()
        self.sessions.changed.wait(ITERATION_S)
        self.sessions.changed.clear()
        with self.sessions.lock:
            done, self.sessions.progress = self.sessions.progress, Progress()
            merged, version, weights = self.merger.merged, self.merger.version, self.merger.weights
            refused = sum(self.merger.refused.values())
        self._counted += (done.steps, done.updates, done.episodes, done.messages)
        self._weights.write(weights)
        self.learner.updates = int(self._counted[1])
        states = tuple(self.sessions.states.values())
        working = sum(one.state == "working" for one in states)
        flow = {"nodes": working, "merges": merged, "versions": version, "contributions_refused": refused}
        flow |= {"node_bytes": sum(one.received_bytes + one.sent_bytes for one in states)}
        metrics = {name: float(value) for name, value in flow.items()}
        if not done.messages:
            return Iteration(None, None, None, metrics)
        returns = np.array(done.returns, np.float32)
        ended = Episodes(returns, np.zeros(len(returns), bool))
        return Iteration(Update(self.learner, None, metrics), None, ended, {})

    def save(self) -> Tree:
        with self.sessions.lock:
            counts = [self.merger.version, self.merger.merged]
        return {"learner": self.learner.save(), "counted": self._counted.copy(), "merger": counts}

    def load(self, state: Tree) -> None:
        """Before the first iteration. Nodes that come again are given the weights of the checkpoint."""
        self.learner.load(state["learner"])
        self._counted = state["counted"].copy()
        self.merger.weights = self._weights.read()
        self.merger.version, self.merger.merged = state["merger"]

    def close(self) -> None:
        self._opened.close()
