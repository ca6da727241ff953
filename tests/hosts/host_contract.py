"""What holds of every host: tests for a fixture `host`, run on this machine's processes and on a real Ray cluster.

A fixture `kept` is a host for all of them: what changes nobody is asked of two instances that are started once.
"""

import json
import os
import signal
import time

import numpy as np
import psutil
import pytest
from host_services import Broken, Doomed, Large, Worker

from sparring.cli import main
from sparring.errors import ConfigError, Missing, Refused, WireError
from sparring.hosts.protocol import Resources
from sparring.services.discovery import Local
from sparring.services.errors import Overloaded
from sparring.services.solver import CallFailed, CallLost, CallTimeout, Solver

ONE = Resources(cpus=0.1)
PATIENCE_S = 60.0  # of a busy machine


def until(there, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


def happened(host, kind, seconds=PATIENCE_S):
    """Events up to the first of that kind."""
    seen = []

    def there():
        seen.extend(host.watch())
        return any(event.kind == kind for event in seen)

    until(there, seconds)
    return seen


@pytest.fixture(scope="module")
def pair(kept):
    started = kept.start(Worker, "pair", 2, ONE, {})
    for worker in started:
        worker.ask("who").result(120.0)
    return started


@pytest.fixture
def both(pair):
    """The two, without a past."""
    for worker in pair:
        worker.ask("forget").result()
    return pair


@pytest.fixture
def worker(both):
    return both[0]


def test_each_instance_knows_who_it_is(host):
    handles = host.start(Worker, "worker", 2, ONE, {"word": "hi"})
    who = [handle.ask("who").result() for handle in handles]
    assert [(one["word"], one["index"], one["generation"]) for one in who] == [("hi", 0, 0), ("hi", 1, 0)]
    assert len({one["pid"] for one in who} | {os.getpid()}) == 3
    assert [(handle.index, handle.generation) for handle in handles] == [(0, 0), (1, 0)]
    happened(host, "started")


def test_each_may_be_given_something_else(host):
    handles = host.start(Worker, "worker", 2, ONE, [{"word": "a"}, {"word": "b"}])
    assert [handle.ask("who").result()["word"] for handle in handles] == ["a", "b"]
    with pytest.raises(ConfigError, match="3 instances and 1 mappings"):
        host.start(Worker, "other", 3, ONE, [{}])


def test_a_constructor_is_given_arrays(host):
    (large,) = host.start(Large, "large", 1, ONE, {"weights": np.arange(100_000.0)})
    total, ones = large.ask("sums").result()
    assert total == np.arange(100_000.0).sum()
    assert ones.sum() == 1 << 16


def test_answers_are_plain_data_whatever_the_host(worker):
    given = (1, 2.5, "three", None, True, b"4", [5, (6, 7)], {"eight": np.float32(9.0)})
    values, named = worker.ask("echo", *given, x=np.arange(3)).result()
    assert values == [1, 2.5, "three", None, True, b"4", [5, [6, 7]], {"eight": 9.0}]
    assert named["x"].tolist() == [0, 1, 2]


def test_calls_begin_in_their_order_and_many_are_under_way(worker):
    asked = [worker.ask("note", number) for number in range(100)]
    assert [one.result() for one in asked] == list(range(100))
    assert worker.ask("worked").result() == list(range(100))
    assert all(one.done() for one in asked)


def test_what_was_given_may_be_changed_afterwards(worker):
    small, large = np.zeros(4), np.zeros(1 << 16)
    asked = worker.ask("echo", small, large)
    small += 1
    large += 1
    values, _ = asked.result()
    assert [one.sum() for one in values] == [0.0, 0.0]


def test_errors_arrive_typed_and_with_their_story(worker):
    with pytest.raises(Missing, match=r"larder: there is no cheese\. Buy some\."):
        worker.ask("breaks", "ours").result()
    with pytest.raises(CallFailed, match="ZeroDivisionError: by nothing") as failed:
        worker.ask("breaks", "theirs").result()
    assert "in breaks" in failed.value.story
    with pytest.raises(WireError, match="a object has no place"):
        worker.ask("breaks", "object").result()
    with pytest.raises(Refused, match="it has no verb 'dance'"):
        worker.ask("dance").result()


def test_a_call_that_takes_longer_than_its_caller_waits_is_late_and_may_be_asked_for_again(worker):
    asked = worker.ask("sleep", 3.0)
    with pytest.raises(CallTimeout, match=r"pair/0 did not answer sleep within 0.1 s"):
        asked.result(0.1)
    assert not asked.done()
    assert asked.result() == 3.0


def test_tasks_are_queued_and_a_full_queue_refuses_or_lets_wait(worker):
    for number in range(5):
        worker.ask("work", number).result()
    assert worker.ask("worked").result() == [0, 1, 2, 3, 4]
    rare = [worker.ask("rare", 1.0) for _ in range(5)]
    with pytest.raises(Overloaded, match="wait for rare"):
        rare[-1].result()
    for number in range(10, 20):
        worker.ask("patient", number).result()
    assert worker.ask("worked").result()[5:] == list(range(10, 20))


def test_callers_are_served_together(worker):
    sizes: list[int] = []
    for rounds in range(1, 11):  # on a busy machine calls may come apart by more than the verb waits: then again
        asked = [worker.ask("double", np.full(3, float(number))) for number in range(12)]
        assert [one.result()[0] for one in asked] == [2.0 * number for number in range(12)]
        sizes = worker.ask("batches").result()
        assert sum(sizes) == 12 * rounds
        if max(sizes) == 8:
            break
    assert max(sizes) == 8


def test_a_shared_value_is_seen_by_all_and_changed_by_none(kept, both):
    shared = kept.share({"a": np.ones(100_000), "b": np.ones(3, np.float32)})
    for worker in both:
        assert worker.ask("total", shared).result() == 100_003.0
        assert worker.ask("total", weights=shared, times=2).result() == 200_006.0
    assert both[0].ask("is_read_only", kept.share(np.ones(100_000))).result()
    del shared
    assert both[0].ask("total", kept.share({"a": np.zeros(10)})).result() == 0.0


def test_an_answer_under_way_stands_for_its_value(both):
    first, second = both
    slow = first.ask("sleep", 2.0)
    later = second.ask("add", slow, b=1.0)
    then = second.ask("note", "after")
    assert not later.done()
    assert later.result() == 3.0
    assert then.result() == "after"
    large = first.ask("add", np.ones(200_000), 1.0)
    assert second.ask("add", large, 1.0).result().sum() == 600_000.0
    with pytest.raises(Missing, match="there is no cheese"):
        second.ask("add", first.ask("breaks", "ours"), 1.0).result()


def test_whoever_waits_for_several_is_given_those_that_are_done(kept, both):
    first, second = both
    quick, slow = first.ask("sleep", 0.0), second.ask("sleep", 4.0)
    assert kept.wait([quick, slow], PATIENCE_S) == [quick]
    assert kept.wait([slow], 0.05) == []
    slow.result()
    assert set(kept.wait([quick, slow], PATIENCE_S)) == {quick, slow}
    assert kept.wait([], 0.1) == []


def test_services_find_each_other_by_name(kept, worker):
    kept.start(Worker, "answerer", 1, ONE, {"word": "here"})
    assert worker.ask("ask_others", "answerer", "who").result()["word"] == "here"
    big = worker.ask("ask_others", "answerer", "add", np.ones(100_000), 1.0).result()
    assert big.sum() == 200_000.0
    with pytest.raises(Missing, match="there is no cheese"):
        worker.ask("ask_others", "answerer", "breaks", "ours").result()
    kept.scale("answerer", 0)


def test_a_process_that_an_instance_starts_finds_the_services_too(kept, worker):
    kept.start(Worker, "adder", 1, ONE, {"word": "here"})  # the worker itself waits for the process
    asked = worker.ask("ask_in_a_process", kept.discovery, "adder", "add", "1", "2")  # as a learner's actors do
    assert asked.result(PATIENCE_S) == "12"
    kept.scale("adder", 0)


def test_it_scales_up_and_down(host):
    handles = host.start(Worker, "worker", 1, ONE, {"word": "hi"})
    more = host.scale("worker", 3)
    assert [one.ask("who").result()["index"] for one in more] == [0, 1, 2]
    assert {one.ask("who").result()["word"] for one in more} == {"hi"}
    pids = [one.ask("who").result()["pid"] for one in more]
    (left,) = host.scale("worker", 1)
    assert left.ask("who").result()["pid"] == pids[0] == handles[0].ask("who").result()["pid"]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids[1:]))
    with pytest.raises(CallLost):
        more[2].ask("who").result()
    with pytest.raises(Missing, match="no service 'other' was started"):
        host.scale("other", 1)


def test_who_comes_later_is_given_what_is_said_of_it_within_bounds(host):
    few = Resources(cpus=0.1, least=1, most=3)
    host.start(Worker, "worker", 1, few, lambda index, count: {"word": f"{index} of {count}"})
    more = host.scale("worker", 3)
    assert [one.ask("who").result()["word"] for one in more] == ["0 of 1", "1 of 3", "2 of 3"]
    for count in (0, 4):
        with pytest.raises(Refused, match=rf"service worker: {count} instances\. Ask for 1 to 3\."):
            host.scale("worker", count)


def test_one_that_hangs_is_renewed_in_its_place(host):
    first, second = host.start(Worker, "worker", 2, ONE, [{"word": "a"}, {"word": "b"}])
    pid, kept = second.ask("who").result()["pid"], first.ask("who").result()["pid"]
    os.kill(pid, signal.SIGSTOP)
    new = host.renew("worker", 1)
    who = new.ask("who").result()
    assert (who["word"], who["index"]) == ("b", 1)
    until(lambda: not psutil.pid_exists(pid))
    assert [one.ask("who").result()["pid"] for one in host.handles("worker")] == [kept, who["pid"]]
    with pytest.raises(CallLost):
        second.ask("who").result()


def test_who_is_killed_comes_back_and_its_handle_leads_to_it(host):
    (worker,) = host.start(Worker, "worker", 1, ONE, {"word": "hi"})
    pid = worker.ask("who").result()["pid"]
    seen = happened(host, "started")
    lost, kept = worker.ask("sleep", 30.0), worker.ask("nap", 0.0)
    time.sleep(1.0)  # until it has begun
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CallLost, match="worker/0 died under sleep"):
        lost.result()
    assert kept.result() == 1  # twice is fine, so the next one was asked
    who = worker.ask("who").result()
    assert (who["word"], who["generation"]) == ("hi", 1)
    assert who["pid"] != pid
    seen += happened(host, "restarted")
    assert [event.kind for event in seen] == ["started", "died", "restarted"]
    assert {(event.service, event.index) for event in seen} == {("worker", 0)}
    assert worker.generation == 1


def test_a_call_whose_argument_was_lost_is_lost_and_holds_up_none_after_it(host):
    first, second = host.start(Worker, "worker", 2, ONE, {})
    pid, _ = first.ask("who").result()["pid"], second.ask("who").result()
    never = first.ask("sleep", 60.0)
    later = [second.ask("add", never, 1.0) for _ in range(3)]
    then = second.ask("note", "after")
    time.sleep(1.0)  # until it has begun
    os.kill(pid, signal.SIGKILL)
    for one in later:
        with pytest.raises(CallLost, match="died under"):
            one.result()
    assert then.result() == "after"
    assert second.ask("worked").result(30.0) == ["after"]


@pytest.mark.slow
def test_a_crash_loop_is_given_up_and_said(host):
    (doomed,) = host.start(Doomed, "doomed", 1, ONE, {})
    asked = doomed.ask("who")
    with pytest.raises(CallLost):
        asked.result(60.0)
    seen = happened(host, "gave up", 60.0)
    assert 1 <= sum(event.kind == "died" for event in seen) <= 5
    with pytest.raises(CallLost):
        doomed.ask("who").result()


def test_a_constructor_that_fails_is_told_with_its_story(host):
    (broken,) = host.start(Broken, "broken", 1, ONE, {})
    seen = happened(host, "gave up", 60.0)
    assert "there is no larder" in seen[-1].why
    with pytest.raises(CallLost, match="there is no larder"):
        broken.ask("who").result()


def test_restarts_may_be_limited(host):
    (worker,) = host.start(Worker, "worker", 1, Resources(cpus=0.1, restarts=0), {})
    os.kill(worker.ask("who").result()["pid"], signal.SIGKILL)
    happened(host, "gave up")
    with pytest.raises(CallLost):
        worker.ask("who").result()


def test_closing_it_ends_all_that_it_started(host, tmp_path):
    note = tmp_path / "note"
    handles = host.start(Worker, "worker", 2, ONE, {"closes": str(note)})
    pids = [handle.ask("who").result()["pid"] for handle in handles]
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 20.0
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert note.read_text() == "closed"
    host.close()


def test_a_class_that_cannot_be_imported_is_refused(host):
    class Inner(Worker):
        pass

    with pytest.raises(ConfigError, match="cannot be imported by another process"):
        host.start(Inner, "inner", 1, ONE, {})
    with pytest.raises(ConfigError, match="has no verb"):
        host.start(Resources, "none", 1, ONE, {})
    with pytest.raises(ConfigError, match="cannot name a service"):
        host.start(Worker, "a/b", 1, ONE, {})


def test_others_see_what_it_runs_and_scale_it(host, capsys):
    (worker,) = host.start(Worker, "worker", 1, ONE, {})
    control = host._folder.path
    pid = worker.ask("who").result(120.0)["pid"]

    def listed():
        assert main(["services", "list", "--discovery", f"local://{control}", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["services"]
        return [(row["service"], row["pid"]) for row in rows] == [("host", os.getpid()), ("worker", pid)]

    until(listed)
    with Solver(Local(control)) as solver:
        (runs,) = solver.retrieve("host", "list")
        assert (runs["name"], runs["count"], runs["generations"]) == ("worker", 1, [0])
        assert solver.within(PATIENCE_S).retrieve("host", "scale", "worker", 2) == 2
        with pytest.raises(Refused, match="-1 instances"):
            solver.retrieve("host", "scale", "worker", -1)
    assert [handle.ask("who").result()["index"] for handle in host.handles("worker")] == [0, 1]
    with pytest.raises(ConfigError, match="was started already"):
        host.start(Worker, "worker", 1, ONE, {})
