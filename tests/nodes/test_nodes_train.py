"""Real runs with real node processes: they learn together, one is killed, one is frozen, and the run goes on."""

import json
import os
import signal
import threading

import numpy as np
import pytest
from node_processes import PATIENCE_S, QUICK, fingerprint_of, free_port, line, node, parent_process, wait

import sparring
from sparring.config import load
from sparring.errors import ConfigError
from sparring.learn.plan import NodesPlan, TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nodes.board import Board

pytestmark = pytest.mark.timeout(1800)


def config(tmp_path, *more):
    return load(None, (f"data={tmp_path / 'data'}", *QUICK, *more))


def wish(settings, dial=(), accept="", steps=40_000, game="cartpole", algo="a3c"):
    nodes = NodesPlan(settings.nodes, settings.data, tuple(dial), accept)
    return TrainRequest(game, algo, steps=steps, nodes=nodes)


@pytest.mark.slow
def test_a_node_that_listens_and_one_that_joins_learn_a_game_together(tmp_path):
    settings, place = config(tmp_path), f"127.0.0.1:{free_port()}"
    loops, done, states = [], [], {}
    with node(tmp_path, "listens", "--listen", "127.0.0.1:0") as (_, log):
        request = wish(settings, [line(log)], place, steps=1 << 40)
        learning = threading.Thread(
            target=lambda: done.append(train(request, TrainOptions(), settings, print, loops.append))
        )
        learning.start()
        token = wait(lambda: (tmp_path / "data/nodes/token").exists() and (tmp_path / "data/nodes/token").read_text())
        mark = wait(lambda: fingerprint_of(tmp_path / "data/nodes/tls-cert.pem"))
        with node(tmp_path, "joins", "--join", f"wss://{token}@{place}#sha256:{mark}") as (process, _):

            def both():
                states.update({one.node: one.merges for state in Board(settings.data).parents() for one in state.nodes})
                return len(states) == 2 and min(states.values()) >= 2

            def learned():
                return np.mean(loops[0]._returns) > 150  # a random player earns 22

            try:
                wait(both)
                wait(learned)
            finally:
                loops[0].stop_requested = True
                learning.join(PATIENCE_S)
            assert process.wait(60) == 0  # it was told that the run is done
    [result] = done
    assert set(states) == {"listens", "joins"}
    assert result.published.evaluation.mean > 60
    run = tmp_path / "data" / "runs" / result.run
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["merges"] >= 2
    assert rows[-1]["contributions_refused"] < rows[-1]["merges"]  # a node on a busy machine may be too late
    assert token not in (run / "run.json").read_text()


@pytest.mark.slow
def test_a_run_goes_on_when_a_node_is_killed_and_another_frozen(tmp_path):
    settings = config(tmp_path, "nodes.reconnect_s=0.5")
    place = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    board, done = Board(settings.data), []

    def merges(name):
        return {one.node: one.merges for state in board.parents() for one in state.nodes}.get(name, 0)

    with node(tmp_path, "a", "--listen", place[0]) as (_, a), node(tmp_path, "b", "--listen", place[1]) as (killed, b):
        request = wish(settings, [line(a), line(b)], steps=1 << 40)
        loops = []

        def learn():
            done.append(train(request, TrainOptions(), settings, print, loops.append))

        learning = threading.Thread(target=learn)
        learning.start()
        try:
            wait(lambda: merges("a") > 1 and merges("b") > 1)
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
            before = merges("a")
            wait(lambda: merges("a") > before + 5)  # the other went on
            with node(tmp_path, "b", "--listen", place[1]) as (frozen, _):
                before = merges("b")
                wait(lambda: merges("b") > before + 2)  # and a new process is dialled at the same place
                os.kill(frozen.pid, signal.SIGSTOP)
                before = merges("a")
                wait(lambda: merges("a") > before + 5)
                os.kill(frozen.pid, signal.SIGCONT)
                before = merges("b")
                wait(lambda: merges("b") > before + 2)
        finally:
            loops[0].stop_requested = True
            learning.join(PATIENCE_S)
    assert done[0].state == "stopped"


@pytest.mark.slow
def test_a_node_plays_on_when_its_parent_is_killed_and_comes_back_to_the_resumed_run(tmp_path):
    place, data = f"127.0.0.1:{free_port()}", tmp_path / "data"

    def merges():
        return sum(state.merges for state in Board(data).parents())

    with parent_process(tmp_path, place):
        token = wait(lambda: (data / "nodes/token").exists() and (data / "nodes/token").read_text())
        mark = wait(lambda: fingerprint_of(data / "nodes/tls-cert.pem"))
        address = f"wss://{token}@{place}#sha256:{mark}"
        with node(tmp_path, "one", "--join", address, "--set", "nodes.reconnect_s=1") as (process, log):
            wait(lambda: merges() > 2 and list(data.glob("runs/*/checkpoint/state")))
            before = merges()
            [state] = Board(data).parents()
            os.kill(state.pid, signal.SIGKILL)
            wait(lambda: "closed" in log.read_text() or "broke" in log.read_text())
            assert process.poll() is None
            with parent_process(tmp_path, place, "--resume"):
                wait(lambda: log.read_text().count("learning cartpole") == 2)
                wait(lambda: merges() > before + 2)  # counted on from the checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_other_algorithms_learn_through_nodes_too(tmp_path, algo):
    settings = config(tmp_path)
    with node(tmp_path, "one", "--listen", "127.0.0.1:0") as (_, log):
        request = wish(settings, [line(log)], steps=200_000, algo=algo)
        result = train(request, TrainOptions(until=60), settings, print)
    assert result.updates > 0
    assert result.published.evaluation.mean > 30  # a random player earns 22


@pytest.mark.slow
def test_a_python_program_trains_with_a_node(tmp_path):
    data, quick = tmp_path / "data", dict(one.split("=") for one in QUICK)
    sets = {key: float(value) if "." in value else int(value) for key, value in quick.items()}
    with node(tmp_path, "one", "--listen", "127.0.0.1:0") as (_, log):
        shown, told = line(log), {"steps": 20_000, "contribute": "weights", "config_set": sets, "data": data}
        run = sparring.train("cartpole", "ppo", nodes=shown, progress=False, **told)
    assert run.metrics["merges"][-1] > 0
    assert run.result.plan.topology == "nodes"
    rows = {row["key"]: row["origin"] for row in json.loads((run.folder / "settings.json").read_text())}
    assert rows["nodes.contribute"] == "program"
    token = shown.partition("@")[0].removeprefix("wss://")
    assert not [file for file in run.folder.rglob("*.json") if token in file.read_text()]


def test_options_of_nodes_without_nodes_are_refused(tmp_path):
    for given in ({"contribute": "weights"}, {"nodes_cert": "cert.pem"}, {"nodes_key": "key.pem"}):
        with pytest.raises(ConfigError, match="no nodes are asked for"):
            sparring.train("cartpole", data=tmp_path, **given)
    with pytest.raises(ConfigError, match="contribute = 'gradients'"):
        sparring.train("cartpole", accept_nodes="127.0.0.1:0", contribute="gradients", data=tmp_path)


@pytest.mark.slow
def test_a_run_with_nodes_is_resumed_from_its_checkpoint(tmp_path):
    settings = config(tmp_path)
    with node(tmp_path, "one", "--listen", "127.0.0.1:0") as (_, log):
        dial = [line(log)]
        first = train(wish(settings, dial, steps=20_000), TrainOptions(), settings, print)
        again = train(wish(settings, dial, steps=40_000), TrainOptions(resume=first.run), settings, print)
    assert again.run == first.run
    assert again.env_steps >= 40_000 > first.env_steps - 20_000
    with pytest.raises(ConfigError, match="the run has topology nodes"):
        train(TrainRequest("cartpole", "a3c"), TrainOptions(resume=first.run), settings, print)


def test_plans_that_nodes_cannot_carry_out_are_refused_before_anything_starts(tmp_path):
    settings = config(tmp_path)
    nodes = NodesPlan(settings.nodes, settings.data, ("wss://t@127.0.0.1:1",))
    for request, wrong in (
        (TrainRequest("cartpole", "sac", nodes=nodes), "carries|do not learn"),
        (TrainRequest("cartpole", "a3c", topology="nodes"), "needs nodes"),
        (TrainRequest("cartpole", "a3c", topology="hogwild", nodes=nodes), "has no nodes"),
        (TrainRequest("cartpole", "a3c", nodes=nodes, settings=("network=user_modules:Mlp",)), "never receive code"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            train(request, TrainOptions(), settings, print)
