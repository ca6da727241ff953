"""A parent and nodes over real TLS sockets: rounds, lost and frozen nodes, bans, drains, tokens."""

import asyncio

import numpy as np
import pytest

from peers import LAYOUT, PATIENCE_S, Peer, dial, parent, run
from sparring.errors import Refused, Unreachable
from sparring.nodes.rounds import KNOWN, ResponseTimes

ONES = np.ones(LAYOUT.size, np.float32)


@pytest.mark.parametrize("codec", ["f32", "f16-delta", "int8-delta", "topk(1)"])
def test_two_nodes_contribute_and_both_get_the_average(tmp_path, codec):
    async def conversation(here):
        one, two = Peer(here, "one"), Peer(here, "two")
        await one.join()
        await two.join()
        await one.exchange(0.5)  # the other has not contributed yet: nobody waits for it
        await two.send(0.5)
        while here.merger.contributors() != {"two"}:
            await asyncio.sleep(0.01)
        await one.exchange(0.0)
        await two.answer()
        await asyncio.gather(one.exchange(1.0), two.exchange(3.0))
        assert np.allclose(one.base, two.base, atol=1e-3)
        assert np.allclose(here.merger.weights, one.base, atol=1e-3)

    with parent(tmp_path, codec=codec) as here:
        run(conversation(here))
        assert here.merger.merged == 5
        done = here.sessions.progress
        assert (done.steps, done.updates, done.episodes, done.returns) == (50, 5, 5, [1.0] * 5)


def test_a_round_goes_on_without_a_node_that_froze_or_left(tmp_path):
    async def conversation(here):
        one, frozen, gone = (Peer(here, name) for name in ("one", "frozen", "gone"))
        for peer in (one, frozen, gone):
            await peer.join()
        await one.exchange(1.0)
        for number, peer in enumerate((frozen, gone), 1):
            await peer.send(1.0)
            while len(here.merger.contributors()) < number:
                await asyncio.sleep(0.01)
        await one.exchange(1.0)
        await asyncio.gather(frozen.answer(), gone.answer())
        await gone.link.close()
        here.sessions.rounds.longest_s = 0.5
        await one.exchange(1.0)  # at the deadline, without the frozen one
        here.sessions.rounds.longest_s = 1e6  # nobody waits for the frozen one now
        await one.exchange(1.0)
        await frozen.send(1.0)
        while here.merger.contributors() != {"frozen"}:
            await asyncio.sleep(0.01)
        await one.exchange(1.0)
        assert (await frozen.answer()).refused == ""  # two rounds late, and back

    with parent(tmp_path) as here:
        run(conversation(here))


def test_elastic_and_gradient_merge_at_once(tmp_path):
    async def conversation(here):
        one, two = Peer(here, "one"), Peer(here, "two")
        await one.join()
        await two.join()
        await one.exchange(1.0)
        assert np.allclose(one.base, 0.5)
        await two.exchange(1.0)
        assert np.allclose(two.base, 0.75)

    with parent(tmp_path, "elastic(0.5, 0)") as here:
        run(conversation(here))


def test_bad_contributions_are_refused_counted_and_answered(tmp_path):
    async def conversation(here):
        one = Peer(here, "one")
        await one.join()
        assert (await one.exchange(np.nan)).refused == "not finite"
        assert (await one.exchange(1e6)).refused == "norm"
        await one.send(1.0, version=77)
        assert (await one.answer()).refused == "version"
        assert (await one.exchange(0.1)).refused == ""
        assert here.merger.refused == {"not finite": 1, "norm": 1, "version": 1}
        assert here.sessions.states["one"].refused == {"not finite": 1, "norm": 1, "version": 1}

    with parent(tmp_path, max_norm=10.0) as here:
        run(conversation(here))


def test_a_node_that_comes_again_is_told_what_it_missed_and_no_other_takes_its_place(tmp_path):
    async def conversation(here):
        one, two = Peer(here, "one"), Peer(here, "two")
        assert (await one.join()).missed == 0
        await one.exchange(1.0)
        with pytest.raises(Refused, match="another node is called 'one'"):
            await Peer(here, "one").join(secret="not mine")
        await one.link.close()
        await two.join()
        for _ in range(3):
            await two.exchange(1.0)
        first = await one.join(run="run")
        assert (first.missed, first.version) == (3, 4)
        assert np.array_equal(one.base, here.merger.weights)

    with parent(tmp_path) as here:
        run(conversation(here))


def test_an_operator_bans_drains_and_allows_while_it_runs(tmp_path):
    async def conversation(here):
        bad, tired = Peer(here, "bad"), Peer(here, "tired")
        await bad.join()
        here.board.order("ban", "bad", "noise")
        with pytest.raises(Refused, match="this node is banned: noise"):
            await bad.link.receive(PATIENCE_S)
        with pytest.raises(Refused, match="this node is banned: noise"):
            await bad.join()
        await tired.join()
        here.board.order("drain", "tired")
        assert (await tired.exchange(1.0)).leave == "it was drained"
        with pytest.raises(Refused, match="was drained"):
            await tired.join()
        states = {name: (one.state, one.why) for name, one in here.sessions.states.items()}
        assert states == {"bad": ("banned", "noise"), "tired": ("drained", "it was drained")}
        for name in ("bad", "tired"):
            here.board.order("allow", name)
            await Peer(here, name).join()

    with parent(tmp_path) as here:
        run(conversation(here))
        here.wait(lambda: [one.node for state in here.board.parents() for one in state.nodes] == ["bad", "tired"])
    assert here.board.parents() == []


def test_a_rule_that_waits_for_more_nodes_says_so_once(tmp_path, caplog):
    async def conversation(here):
        one, two = Peer(here, "one"), Peer(here, "two")
        for peer in (one, two):
            await peer.join()
            await peer.send(1.0)
            await asyncio.sleep(0.5)

    with parent(tmp_path, "median", round_s=0.1) as here:
        run(conversation(here))
    said = [message for message in caplog.messages if "it waits" in message]
    assert said == [f"median merges 3 nodes or more, and {count} contributed: it waits" for count in (1, 2)]


def test_a_token_that_was_rotated_holds_no_more_and_connections_stay(tmp_path):
    async def conversation(here):
        one = Peer(here, "one")
        await one.join()
        here.tokens.rotate()
        with pytest.raises(Refused, match="its token does not hold"):
            await dial(here.address)
        await one.exchange(1.0)

    with parent(tmp_path) as here:
        run(conversation(here))


def test_a_fault_in_the_thread_of_the_sessions_ends_the_run(tmp_path):
    with parent(tmp_path) as here:
        here.sessions.check()
        here.sessions.board = None  # which its watch reads
        here.wait(lambda: here.sessions._failed is not None)
        with pytest.raises(AttributeError, match=r"orders|publish"):
            here.sessions.check()


def test_nodes_are_told_that_the_run_is_done(tmp_path):
    async def conversation(here):
        one = Peer(here, "one")
        await one.join()
        await one.exchange(1.0)
        stopping = asyncio.create_task(asyncio.to_thread(here.sessions.stop))
        here_leaves = ""
        while not here_leaves:
            here_leaves = (await one.exchange(0.1)).leave
        assert here_leaves == "the run is done"
        await stopping
        with pytest.raises(Unreachable):
            await one.link.receive(PATIENCE_S)

    with parent(tmp_path) as here:
        run(conversation(here))


def test_a_round_waits_little_longer_than_usual_for_a_node_that_froze(tmp_path):
    async def conversation(here):
        one, frozen = Peer(here, "one"), Peer(here, "frozen")
        for peer in (one, frozen):
            await peer.join()
        await one.exchange(1.0)
        for _ in range(KNOWN):
            await frozen.send(1.0)
            await one.exchange(1.0)
            await frozen.answer()
        await one.exchange(1.0)  # nodes.round_s is longer than this test may take

    with parent(tmp_path, round_s=1e6) as here:
        run(conversation(here))


def test_a_round_does_not_wait_for_a_node_that_is_slower_than_most():
    times = ResponseTimes()
    assert times.patience_s(10.0) == 10.0  # too few response times to tell what is usual
    assert not any(times.straggles(2.0) for _ in range(KNOWN))
    assert times.patience_s(10.0) == 4.0
    assert not times.straggles(2.9)
    assert times.straggles(3.1)
    assert times.patience_s(3.0) == 3.0
