"""Styles: members that do alike, found by what they do and named for it."""

import numpy as np
import pytest
from columns_models import FOUR, columns_model

from sparring.games.catalogue import spec_of
from sparring.league.styles import (
    Feature,
    Watched,
    clusters,
    evenly,
    features_of,
    find_styles,
    silhouette,
    watch,
    without_strength,
)

DUEL = spec_of("duel")
LONG = Feature("long games", "quick games", "games of {0:.1f} ticks, {1:.1f} of the others", 1.0)
EDGES = Feature("edges", "centre", "{0:.2f} from the centre, the others {1:.2f}", 0.05)
ODD = Feature("action 3 early", "", "action 3 in {0:.0%}, the others in {1:.0%}", 0.05, plain=False)
ELOS = [100.0, 110.0, 100.0, 110.0, 100.0, 110.0]  # they explain nothing below


def points(*rows):
    return np.array(rows, float)


def test_points_in_two_heaps_are_two_clusters_whatever_their_order():
    heaps = points([0, 0], [0, 1], [9, 9], [9, 8], [1, 0])
    assert clusters(heaps)[0] == [0, 0, 1, 1, 0]
    labels, separate = clusters(heaps[::-1])
    assert labels == [0, 1, 1, 0, 0]
    assert separate == pytest.approx(clusters(heaps)[1])
    assert separate > 0.7


def test_three_heaps_are_three_clusters():
    labels, _ = clusters(points([0, 0], [0, 1], [9, 0], [9, 1], [4, 20], [4, 21]))
    assert labels == [0, 0, 1, 1, 2, 2]


def test_points_without_heaps_are_one_cluster():
    rng = np.random.default_rng(0)
    labels, separate = clusters(rng.normal(size=(12, 20)))
    assert set(labels) == {0}
    assert separate < 0.25


def test_one_point_far_from_all_others_makes_no_second_style():
    labels, _ = clusters(points([0.0], [0.1], [0.2], [0.3], [90.0]))
    assert labels[:4].count(labels[0]) == 2  # the others are divided, the far one stays alone
    assert clusters(points([0.0], [0.0], [0.0], [90.0]))[0] == [0, 0, 0, 0]


def test_silhouette_by_hand():
    apart = np.abs(np.subtract.outer([0.0, 1.0, 5.0], [0.0, 1.0, 5.0]))
    assert silhouette(apart, [0, 0, 1]) == pytest.approx((4 / 5 + 3 / 4 + 0) / 3)


def test_what_strength_explains_is_no_style():
    elos = np.arange(8.0) * 50
    assert without_strength(np.stack([elos * 2 + 1, -elos], 1), elos) == pytest.approx(np.zeros((8, 2)))
    stronger_is_longer = np.stack([10 + elos / 20, np.tile([0.1, 0.9], 4)], 1)
    found, _ = find_styles([LONG, EDGES], stronger_is_longer, stronger_is_longer, elos)
    assert [(one.name, one.members) for one in found] == [("centre", (0, 2, 4, 6)), ("edges", (1, 3, 5, 7))]


def test_a_style_is_named_for_what_differs_most_and_says_fresh_numbers():
    seen = points([20, 0.5], [21, 0.5], [22, 0.5], [31, 0.5], [30, 0.5], [29, 0.5])
    fresh = seen + [1, 0]
    found, separate = find_styles([LONG, EDGES], seen, fresh, ELOS)
    assert [(one.name, one.members) for one in found] == [("quick games", (0, 1, 2)), ("long games", (3, 4, 5))]
    assert found[0].means == "games of 22.0 ticks, 31.0 of the others"
    assert separate > 0.25
    assert find_styles([LONG, EDGES], seen, fresh, ELOS) == (found, separate)


def test_a_style_is_called_edges_only_where_it_is_nearer_to_them_than_even_choices():
    board = Feature("edges", "centre", "{0:.2f}, {1:.2f}", 0.05, even=0.57, milder=("wide", "inner"))
    for values, names in (
        ((0.3, 0.5), ["centre", "wide"]),
        ((0.3, 0.8), ["centre", "edges"]),
        ((0.7, 0.9), ["inner", "edges"]),
    ):
        seen = points(*[[value] for value in np.repeat(values, 2)])
        assert [one.name for one in find_styles([board], seen, seen, ELOS[:4])[0]] == names


def test_a_name_that_fresh_games_do_not_confirm_is_not_given():
    seen = points([20], [21], [22], [31], [30], [29])
    assert find_styles([LONG], seen, seen[::-1], ELOS)[0] == []


def test_a_member_that_does_not_do_what_the_name_says_is_left_out():
    alike = Feature("", "", "", 0.05, weight=3.0)  # decides the clusters, and has no name
    seen = points(*([20, 0] for _ in range(4)), [34, 0], *([32, 1] for _ in range(5)))
    found, _ = find_styles([LONG, alike], seen, seen + [1, 0], [100.0, 110.0] * 5)
    assert [(one.name, one.members) for one in found] == [
        ("quick games", (0, 1, 2, 3)),
        ("long games", (5, 6, 7, 8, 9)),
    ]
    assert found[0].means == "games of 21.0 ticks, 33.0 of the others"


def test_two_styles_never_share_a_name():
    three = [[20, 0.1], [20, 0.1], [40, 0.9], [40, 0.9], [40, 0.1], [40, 0.1]]
    seen = points(*three)
    found, _ = find_styles([LONG, EDGES], seen, seen, ELOS)
    names = [one.name for one in found]
    assert len(set(names)) == len(names) >= 2
    assert "edges" in names


def test_a_plain_name_goes_before_that_of_an_action():
    seen = points([20, 0.0], [20, 0.0], [30, 0.9], [30, 0.9])
    found, _ = find_styles([ODD, LONG], seen[:, ::-1], seen[:, ::-1], ELOS[:4])
    assert [one.name for one in found] == ["quick games", "long games"]


def test_members_that_do_alike_or_are_too_few_have_no_styles():
    alike = np.ones((6, 2))
    assert find_styles([LONG, EDGES], alike, alike, ELOS)[0] == []
    few = points([1, 0], [9, 1], [9, 1])
    assert find_styles([LONG, EDGES], few, few, ELOS[:3])[0] == []


def watched(actions, choices=7, **more):
    actions = np.array(actions, np.int32)[:, :, None]
    shares = np.array([np.bincount(one[:, 0], minlength=choices) / len(one) for one in actions])
    same = {"ticks": np.ones(len(actions)), "drawn": np.zeros(len(actions)), "repeated": np.zeros(len(actions))}
    return Watched(actions, np.zeros(actions.shape[1], int), shares, **(same | more))


def test_features_say_what_was_chosen_in_common_positions():
    features, values = features_of(FOUR, watched([[0, 6, 0, 6], [3, 3, 3, 3], [3, 3, 3, 0]]))
    by = {one.more: values[:, at].tolist() for at, one in enumerate(features)}
    assert by["edges"] == pytest.approx([1.0, 0.0, 0.25])
    assert by["usual moves"] == pytest.approx([0.0, 0.375, 0.375])
    assert by["varied moves"][:2] == pytest.approx([np.log(2) / np.log(7), 0.0])
    assert by["action 3 early"] == pytest.approx([0.0, 1.0, 0.75])
    assert by["action 3 late"] == pytest.approx([0.0, 0.0, 0.0])


def test_only_actions_that_are_places_of_a_board_have_a_centre():
    features, _ = features_of(DUEL, watched([[0, 1], [2, 2]], 3))
    assert "edges" not in {one.more for one in features}


def test_places_are_chosen_evenly():
    assert evenly(10, 4) == [0, 3, 6, 9]
    assert evenly(3, 4) == [0, 1, 2]


def test_models_that_prefer_the_edges_are_told_from_those_of_the_centre():
    models = [columns_model(*order) for order in ((0, 6, 1), (6, 0, 5), (3, 2, 4), (3, 4, 2))]
    seen, fresh = (features_of(FOUR, watch(FOUR, models, seed)) for seed in (0, 1))
    found, _ = find_styles(seen[0], seen[1], fresh[1], [100.0, 110.0, 120.0, 130.0])
    assert [(one.name, one.members) for one in found] == [("edges", (0, 1)), ("centre", (2, 3))]
    assert (features_of(FOUR, watch(FOUR, models, 0))[1] == seen[1]).all()
