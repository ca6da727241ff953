"""Relays: many nodes behind one connection, each of them known to the parent; and what happens when one side dies."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from node_processes import free_port, joining_line, line, node, parent_process, wait

from peers import Peer, parent, run
from sparring.config import Config, NodesConfig
from sparring.errors import Refused, Unreachable, WireError
from sparring.gateway.connections import bound
from sparring.nodes.board import Board
from sparring.nodes.codecs import Layout
from sparring.nodes.link import Address, Door, Tokens, server_tls
from sparring.nodes.messages import Opened
from sparring.nodes.relay import Relay
from sparring.nodes.sessions import NodeSessions


@dataclass
class Here:
    """What a Peer needs of its parent, at the address of a relay."""

    address: Address
    terms: object
    sessions: NodeSessions


@contextmanager
def relayed(tmp_path, here, **settings):
    """A relay in front of that parent."""
    folder = tmp_path / "relay"
    config = Config(nodes=NodesConfig(**{"handshake_s": 5.0, "reconnect_s": 0.2, **settings}))
    relay, tokens, (tls, mark) = Relay(config, "relay"), Tokens(folder), server_tls(folder, "127.0.0.1", "", "")
    with bound("127.0.0.1", 0) as listening:
        address = Address("127.0.0.1", listening.getsockname()[1], tokens.read(), True, mark)
        door = Door(listening, tls, tokens.holder)

        def serve():
            with suppress(Refused):  # when it was banned
                relay.run(here.address, door)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            here.wait(lambda: "relay" in here.sessions.relays)
            yield Here(address, here.terms, here.sessions)
        finally:
            relay.stop()
            thread.join()


@pytest.mark.parametrize("codec", ["f32", "f16", "int8", "f32-delta", "int8-delta", "topk(0.5)"])
def test_nodes_behind_a_relay_are_merged_as_if_they_had_joined_the_parent(tmp_path, codec):
    async def conversation(there):
        peers = [Peer(there, name) for name in ("one", "two", "three")]
        for peer in peers:
            assert (await peer.join()).whole
        for _ in range(3):
            for peer, learned in zip(peers, (1.0, 2.0, 3.0), strict=True):
                await peer.send(learned)
            for peer in peers:
                await peer.answer()
        for peer in peers:
            if codec != "topk(0.5)":  # which sends the other half later
                np.testing.assert_allclose(peer.base, there.sessions.merger.weights, rtol=0.01)

    with parent(tmp_path, merge="median", codec=codec) as here, relayed(tmp_path, here) as there:
        run(conversation(there))
        if codec != "topk(0.5)":
            np.testing.assert_allclose(here.merger.weights, 6.0, rtol=0.01)
        told = {name: (state.relay, state.merges) for name, state in here.sessions.states.items()}
        assert told == {"relay": ("", 0)} | dict.fromkeys(("one", "two", "three"), ("relay", 3))


def test_weights_of_one_version_cross_the_upstream_link_once(tmp_path):
    layout, nodes, rounds = Layout((("w", (100, 100)),)), 6, 5

    async def conversation(there):
        peers = [Peer(there, f"node{number}") for number in range(nodes)]
        for peer in peers:
            await peer.join()
        for _ in range(rounds):
            for peer in peers:
                await peer.send(1.0)
            for peer in peers:
                await peer.answer()

    def sent(here):
        here.wait(lambda: not here.sessions.live)
        here.sessions.described()
        return sum(state.sent_bytes for state in here.sessions.states.values()), here.merger.version

    with parent(tmp_path, merge=f"krum({nodes - 3})", layout=layout) as here:
        run(conversation(here))
        direct, versions = sent(here)
    with parent(tmp_path, merge=f"krum({nodes - 3})", layout=layout) as here, relayed(tmp_path, here) as there:
        run(conversation(there))
        once, again = sent(here)
    assert versions == again == rounds
    assert direct > layout.byte_length * (1 + rounds) * nodes
    assert layout.byte_length * (1 + rounds) < once < layout.byte_length * (1 + rounds) * 1.2


def test_a_parent_refuses_bans_and_drains_each_node_behind_a_relay(tmp_path):
    async def conversation(there, here):
        one, bad, third = (Peer(there, name) for name in ("one", "bad", "third"))
        for peer in (one, bad, third):
            await peer.join()
        for peer, learned in ((one, 1.0), (bad, float("nan")), (third, 3.0)):
            await peer.send(learned)
        assert (await bad.answer()).refused == "not finite"
        assert not (await one.answer()).refused
        await third.answer()
        here.board.order("ban", "bad", "noise")
        with pytest.raises(Refused, match="banned: noise"):
            await bad.link.receive(30.0)
        with pytest.raises(Refused, match="banned: noise"):
            await bad.join()
        here.board.order("drain", "third")
        await third.send(1.0)
        await one.send(1.0)
        assert (await third.answer()).leave == "it was drained"
        assert not (await one.answer()).leave
        with pytest.raises(Refused, match="another node is called 'one'"):
            await Peer(there, "one").join(secret="another")
        here.board.order("ban", "relay", "all of it")
        with pytest.raises(Unreachable):
            await one.link.receive(30.0)

    with parent(tmp_path, round_s=0.3) as here, relayed(tmp_path, here) as there:
        run(conversation(there, here))
        assert here.sessions.states["bad"].refused == {"not finite": 1}
        assert here.sessions.states["relay"].state == "banned"


def test_a_hostile_node_behind_a_relay_is_one_voice_of_the_median(tmp_path):
    async def conversation(there):
        peers = [Peer(there, name) for name in ("one", "two", "hostile")]
        for peer in peers:
            await peer.join()
        for peer, learned in zip(peers, (1.0, 1.2, -1_000.0), strict=True):
            await peer.send(learned)
        for peer in peers:
            await peer.answer()

    with parent(tmp_path, merge="median") as here, relayed(tmp_path, here) as there:
        run(conversation(there))
        np.testing.assert_allclose(here.merger.weights, 1.0)


async def send_forever(peer):
    while True:
        await peer.send(1.0)
        await asyncio.sleep(0)  # in which it hears that the connection is closed


def test_a_node_that_floods_is_closed_and_its_relay_is_not(tmp_path):
    async def conversation(there):
        one, flood, huge = Peer(there, "one"), Peer(there, "flood"), Peer(there, "huge")
        for peer in (one, flood, huge):
            await peer.join()
        with pytest.raises((Refused, Unreachable)):
            await send_forever(flood)
        await huge.link.send_frame(bytes(1 << 20))
        with pytest.raises((Refused, Unreachable)):
            await huge.link.receive(30.0)
        assert not (await one.exchange(1.0)).refused

    with parent(tmp_path, round_s=0.3) as here, relayed(tmp_path, here) as there:
        run(conversation(there))
        assert here.sessions.states["relay"].connections == 1


def test_a_relay_that_opens_too_many_channels_is_closed_by_its_parent(tmp_path):
    with parent(tmp_path, connections=4) as here, relayed(tmp_path, here):
        peer = here.sessions.relays["relay"]
        for number in range(4):
            peer._open(Opened(100 + number, "x"))
        with pytest.raises(WireError, match="above 4"):
            peer._open(Opened(99, "x"))


def test_a_node_of_another_version_is_refused_through_the_relay_in_words(tmp_path):
    async def conversation(there):
        terms = msgspec.structs.replace(there.terms, game_version="2")
        with pytest.raises(Refused, match="the game's version differs: the parent has 1, the node 2"):
            await Peer(there, "one").join(terms)

    with parent(tmp_path) as here, relayed(tmp_path, here) as there:
        run(conversation(there))


@contextmanager
def relay_process(tmp_path, parent_line, place):
    """`spar node --relay` in a process of its own."""
    words = ["node", "--relay", parent_line, "--listen", place, "--name", "relay", "--set", "nodes.reconnect_s=1"]
    log = tmp_path / "relay.log"
    with log.open("a") as file:
        command = [sys.executable, "-m", "sparring", *words, "--data", str(tmp_path / "relay")]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait(lambda: "wss://" in log.read_text() or process.poll() is not None)
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("contribute", ["weights", "experience"])
def test_nodes_play_on_when_their_relay_or_its_parent_is_killed_and_come_back(tmp_path, contribute):
    place, relays = (f"127.0.0.1:{free_port()}" for _ in range(2))
    data, words = tmp_path / "data", ("--contribute", contribute)

    def merges(name):
        nodes = {one.node: one for state in Board(data).parents() for one in state.nodes}
        return nodes[name].merges if name in nodes and nodes[name].relay == "relay" else -1

    def both(more):
        return all(merges(name) > more for name in ("one", "two"))

    rejoins = ("--set", "nodes.reconnect_s=1")
    with parent_process(tmp_path, place, *words) as first:
        up = joining_line(data, place)
        with relay_process(tmp_path, up, relays) as (killed, log):
            join = ("--join", line(log), *rejoins)
            with node(tmp_path, "one", *join) as (one, _), node(tmp_path, "two", *join) as (two, said):
                wait(lambda: both(2))
                os.kill(killed.pid, signal.SIGKILL)
                killed.wait()
                wait(lambda: "closed" in said.read_text() or "broke" in said.read_text())
                before = max(merges("one"), merges("two"))
                with relay_process(tmp_path, up, relays) as (relay, _):
                    wait(lambda: both(before + 2))  # the same run goes on
                    wait(lambda: list(data.glob("runs/*/checkpoint/state")))
                    os.kill(first.pid, signal.SIGKILL)
                    first.wait()
                    wait(lambda: "this relay has no parent" in said.read_text() or "closed" in said.read_text())
                    with parent_process(tmp_path, place, *words, "--resume"):
                        wait(lambda: both(2))  # counted anew by the new parent
                        assert [process.poll() for process in (one, two, relay)] == [None] * 3


@pytest.mark.slow
def test_a_relay_dials_nodes_and_ends_with_the_run(tmp_path):
    place, data = f"127.0.0.1:{free_port()}", tmp_path / "data"
    with node(tmp_path, "one", "--listen", "127.0.0.1:0") as (_, log):
        command = [sys.executable, "-m", "sparring", "train", "cartpole", "--algo", "a3c", "--steps", "20000"]
        words = ["--accept-nodes", place, "--set", "nodes.exchange_s=0.2", "--set", "registry.gate_episodes=10"]
        training = subprocess.Popen([*command, *words, "--data", str(data)], stdout=subprocess.DEVNULL)
        try:
            relay = [sys.executable, "-m", "sparring", "node", "--relay", joining_line(data, place)]
            about = ["--listen", "127.0.0.1:0", "--nodes", line(log), "--data", str(tmp_path / "relay")]
            said = subprocess.run([*relay, *about], capture_output=True, text=True, timeout=240)
            assert training.wait(240) == 0
        finally:
            training.kill()
            training.wait()
    assert said.returncode == 0, said.stderr
    assert "the run is done after" in said.stdout
