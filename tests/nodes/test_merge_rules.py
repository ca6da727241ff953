"""Merging as short conversations: nodes contribute, the parent's weights follow, and what is wrong is refused."""

import numpy as np
import pytest

from sparring.errors import ConfigError
from sparring.nodes.merge_rules import Contribution, Limits, Merger, combined, read_rule


def vector(*numbers):
    return np.array(numbers, np.float32)


def merger(rule, **limits):
    return Merger(read_rule(rule), vector(0, 0), Limits(**limits))


def given(node, to, version=0, base=(0, 0)):
    return Contribution(node, version, vector(*base), vector(*to))


def test_elastic_moves_the_parent_by_alpha_and_says_how_far_the_node_moves_back():
    parent = merger("elastic(0.5, 0.25)")
    assert parent.offer(given("a", (2, 4)), nodes=2) == ""
    assert parent.weights.tolist() == [1, 2]
    assert parent.offer(given("b", (3, 2)), nodes=2) == ""
    assert parent.weights.tolist() == [2, 2]
    assert (parent.version, parent.merged, parent.rule.pull) == (2, 2, 0.25)
    assert read_rule("elastic(0.9, 0)").pull == 0  # the node keeps its own


def test_gradient_gives_one_node_that_nobody_overtakes_its_own_weights():
    parent, mine, rng = merger("gradient"), vector(0, 0), np.random.default_rng(0)
    for _ in range(20):
        base, version = parent.weights, parent.version
        mine = (base + rng.integers(-8, 8, 2) / 4).astype(np.float32)  # what its optimiser made of it
        assert parent.offer(Contribution("a", version, base, mine), nodes=1) == ""
        assert parent.weights.tolist() == mine.tolist()


def test_gradient_adds_what_was_learned_and_counts_less_what_is_stale():
    parent = merger("gradient")
    parent.offer(given("a", (2, 4)), nodes=2)
    parent.offer(given("b", (4, 0)), nodes=2)  # one version stale
    assert parent.weights.tolist() == [4, 4]
    parent.offer(given("b", (6, 4), version=2, base=(4, 4)), nodes=2)
    assert parent.weights.tolist() == [6, 4]


def test_a_round_closes_when_all_have_contributed_or_when_it_is_late():
    parent = merger("average")
    parent.offer(given("a", (2, 4)), nodes=3)
    parent.offer(given("b", (4, 0)), nodes=3)
    assert not parent.close_round({"a", "b", "c"}, late=False)
    assert not parent.close_round({"a", "c"}, late=False)  # b does not stand in for c
    assert parent.close_round({"a", "b", "c"}, late=True)
    assert parent.weights.tolist() == [3, 2]
    assert not parent.close_round({"a"}, late=True)  # nobody has contributed to the next
    parent.offer(given("c", (1, 1)), nodes=3)  # one round late: it counts in this one
    parent.offer(given("c", (3, 3)), nodes=3)  # again, after a reconnection: its last one counts
    assert parent.contributors() == {"c"}
    assert parent.close_round({"c"}, late=False)
    assert parent.weights.tolist() == [6, 5]


def test_robust_rules_wait_for_enough_nodes_and_leave_a_hostile_one_out():
    for rule in ("median", "trimmed(0.2)"):
        parent = merger(rule)
        for node, to in (("a", (1, 2)), ("b", (1.5, 2.5))):
            parent.offer(given(node, to), nodes=2)
        assert not parent.close_round({"a", "b"}, late=True), rule
        parent.offer(given("evil", (-900, -900)), nodes=3)
        assert parent.close_round({"a", "b", "evil"}, late=False), rule
        assert parent.weights.tolist() == [1, 2], rule
    deltas = [vector(1, 1), vector(1.1, 1), vector(1, 1.1), vector(-50, 70)]
    assert combined(read_rule("krum(1)"), deltas).tolist() in [one.tolist() for one in deltas[:3]]
    assert read_rule("krum(1)").quorum == 4
    assert np.abs(combined(read_rule("average"), deltas)).max() > 10


def test_what_is_not_finite_too_large_stale_or_of_another_layout_is_refused_and_counted():
    parent = merger("gradient", staleness=1, norm=10.0)
    assert parent.offer(given("a", (float("nan"), 0)), 1) == "not finite"
    assert parent.offer(given("a", (float("inf"), 0)), 1) == "not finite"
    assert parent.offer(given("a", (11, 0)), 1) == "norm"
    assert parent.offer(given("a", (1, 0), version=1), 1) == "version"  # which the parent never made
    assert parent.offer(Contribution("a", 0, vector(0, 0), vector(1, 2, 3)), 1) == "layout"
    assert parent.weights.tolist() == [0, 0]
    for _ in range(2):
        parent.offer(given("a", (1, 0), version=parent.version), 1)
    assert parent.offer(given("b", (1, 0)), 1) == "stale"
    assert parent.offer(given("b", (1, 0)), 2) == ""  # two nodes merge twice as often
    assert parent.refused == {"not finite": 2, "norm": 1, "version": 1, "layout": 1, "stale": 1}


def test_without_a_limit_of_their_own_norms_are_judged_by_those_accepted_before():
    parent = merger("gradient", norm_factor=4.0)
    for version in range(8):
        parent.offer(given("idle", (0, 0), version), 1)  # which learned nothing yet, and sets no measure
    assert parent.norm_limit() == np.inf
    for version in range(8, 16):
        parent.offer(given("a", (0.3, 0.4), version), 1)
    assert parent.norm_limit() == pytest.approx(2.0)
    assert parent.offer(given("a", (3, 0), 16), 1) == "norm"


def test_a_banned_node_is_taken_out_of_the_open_round():
    parent = merger("average")
    parent.offer(given("a", (2, 2)), 2)
    parent.offer(given("evil", (8, 8)), 2)
    parent.leave("evil")
    assert parent.close_round({"a"}, late=False)
    assert parent.weights.tolist() == [2, 2]


@pytest.mark.parametrize(
    "text", ["mean", "elastic(2, 0)", "trimmed(0.7)", "krum(0.5)", "elastic(0.1, 0.2, 0.3)", "x(("]
)
def test_a_rule_that_does_not_read_is_refused_with_a_sentence(text):
    with pytest.raises(ConfigError, match=r"\[nodes\] merge"):
        read_rule(text)


def test_a_rule_is_written_as_it_reads():
    assert str(read_rule("elastic")) == "elastic(0.9, 0)"
    assert str(read_rule("median")) == "median"
