"""What a league decides, told as short conversations: who is met, who is frozen, who starts again, who retires."""

from dataclasses import replace

import numpy as np
import pytest

from sparring.errors import ConfigError
from sparring.league.league_file import parse_league
from sparring.league.matchmaking import WinRates
from sparring.league.roles import (
    LEAGUE_EXPLOITER,
    MAIN,
    MAIN_EXPLOITER,
    SELF,
    Decision,
    Learner,
    Member,
    RoleRules,
    after,
    decide,
    opponents_of,
    to_retire,
)


def rates(**scores):
    """Win rates after a hundred games against each."""
    found = WinRates()
    for name, score in scores.items():
        found.add(name, round(100 * score), 0, 100 - round(100 * score))
    return found


def rng():
    return np.random.default_rng(0)


MAIN_0 = Learner("main-0", "main")
EXPLOITER = Learner("main-exploiter-0", "main-exploiter")


def test_a_main_agent_plays_itself_until_there_is_a_member():
    assert opponents_of(MAIN, MAIN_0, [], [], WinRates()) == {SELF: 1.0}


def test_a_main_agent_meets_itself_everybody_and_those_that_once_beat_it():
    members = [Member("easy", "main"), Member("even", "main"), Member("strong", "main-exploiter")]
    met = opponents_of(MAIN, MAIN_0, members, [], rates(easy=1.0, even=0.5, strong=0.2))
    assert met[SELF] == pytest.approx(0.35)
    assert met["easy"] == pytest.approx(0.0)  # (1 - 1)² of nothing
    assert met["strong"] == pytest.approx(0.5 * 0.64 / 0.89 + 0.15)  # PFSP, and all of the verification
    assert sum(met.values()) == pytest.approx(1.0)


def test_one_that_was_ahead_once_is_met_for_verification_though_it_is_beaten_now():
    against = rates(old=0.3)
    assert against.once_lost("old")
    for _ in range(20):
        against.add("old", 100, 0, 0)
    assert against.of("old") > 0.9
    met = opponents_of(MAIN, MAIN_0, [Member("old", "main"), Member("even", "main")], [], against)
    assert met["old"] >= 0.15


def test_without_one_that_beat_it_the_share_of_verification_goes_to_pfsp():
    met = opponents_of(MAIN, MAIN_0, [Member("a", "main")], [], rates(a=0.9))
    assert met == pytest.approx({SELF: 0.35, "a": 0.65})


def test_retired_members_are_not_met():
    members = [Member("a", "main"), Member("b", "main", retired=True)]
    assert set(opponents_of(MAIN, MAIN_0, members, [], WinRates())) == {SELF, "a"}


def test_everybody_beaten_is_met_alike():
    members = [Member("a", "main"), Member("b", "main")]
    met = opponents_of(MAIN, MAIN_0, members, [], rates(a=1.0, b=1.0))
    assert met["a"] == met["b"] == pytest.approx(0.325)


def test_a_main_exploiter_meets_the_main_agents_as_they_are_now():
    now = [replace(MAIN_0, live="m1"), EXPLOITER]
    assert opponents_of(MAIN_EXPLOITER, EXPLOITER, [Member("past", "main")], now, WinRates()) == {"main-0": 1.0}


def test_a_main_exploiter_that_never_wins_meets_earlier_main_agents_first():
    now = [replace(MAIN_0, live="m1"), EXPLOITER]
    members = [Member("past", "main"), Member("script:random", "script")]
    met = opponents_of(MAIN_EXPLOITER, EXPLOITER, members, now, rates(**{"main-0": 0.02}))
    assert met == {"past": 1.0}


def test_a_main_exploiter_plays_itself_until_a_main_agent_has_weights():
    assert opponents_of(MAIN_EXPLOITER, EXPLOITER, [], [MAIN_0, EXPLOITER], WinRates()) == {SELF: 1.0}


def test_a_league_exploiter_meets_every_member():
    members = [Member("a", "main"), Member("b", "main-exploiter"), Member("script:random", "script")]
    met = opponents_of(LEAGUE_EXPLOITER, Learner("l", "league-exploiter"), members, [], WinRates())
    assert met == pytest.approx({"a": 1 / 3, "b": 1 / 3, "script:random": 1 / 3})


def test_a_learner_is_frozen_after_so_many_steps():
    young = replace(MAIN_0, steps=MAIN.freeze_every_steps - 1)
    assert decide(MAIN, young, {"a": 1.0}, WinRates(), rng()) == Decision()
    due = replace(MAIN_0, steps=MAIN.freeze_every_steps)
    said = decide(MAIN, due, {"a": 1.0}, WinRates(), rng())
    assert (said.freeze, said.reset) == (True, False)
    assert said.why == "500,000 steps have passed"
    again = after(due, said)
    assert again.frozen_steps == due.steps
    assert decide(MAIN, again, {"a": 1.0}, WinRates(), rng()) == Decision()


def test_an_exploiter_is_frozen_once_it_beats_all_and_then_starts_again():
    found = replace(EXPLOITER, steps=MAIN_EXPLOITER.least_steps, run="r", live="m")
    met = {"main-0": 1.0}
    assert decide(MAIN_EXPLOITER, found, met, rates(**{"main-0": 0.69}), rng()) == Decision()
    said = decide(MAIN_EXPLOITER, found, met, rates(**{"main-0": 0.71}), rng())
    assert (said.freeze, said.reset) == (True, True)
    assert after(found, said) == replace(EXPLOITER, generation=1)


def test_a_win_rate_of_few_games_freezes_nobody():
    few = WinRates()
    few.add("main-0", 10, 0, 0)
    found = replace(EXPLOITER, steps=MAIN_EXPLOITER.least_steps)
    assert decide(MAIN_EXPLOITER, found, {"main-0": 1.0}, few, rng()) == Decision()


def test_those_without_a_share_in_the_nash_mixture_retire_first_then_those_that_are_beaten_and_scripts_never():
    members = [
        Member("script:random", "script"),
        *(Member(name, "main", "main-0", frozen_at_ms=at) for at, name in enumerate(("hard", "easy", "newest"))),
    ]
    against = [rates(hard=0.4, easy=0.9, newest=0.95)]
    assert to_retire(members, 2, against, {}) == ["easy"]
    assert to_retire(members, 2, against, {"easy": 0.3, "hard": 0.0}) == ["hard"]
    assert to_retire(members, 1, against, {}) == ["easy", "hard"]
    assert to_retire(members, 3, against, {}) == []


def test_old_results_fade_and_a_draw_is_half_a_win():
    found = WinRates()
    assert found.of("a") == 0.5
    found.add("a", 0, 100, 0)
    assert found.of("a") == 0.5
    found.add("a", 200, 0, 0)  # a half-life later
    assert found.of("a") == pytest.approx((25 + 200) / (50 + 200))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"main": {"selfplay": 0.5}},
            "league.toml: selfplay = 0.5, pfsp = 0.5, verification = 0.15. Make the three shares add up to 1.",
        ),
        ({"main": {"count": 0}}, "league.toml [main]: no main agent learns. Set count to 1 or more."),
        ({"mian": {}}, "league.toml: unknown key 'mian'. Did you mean 'main'?"),
        ({"main": {"wieghting": "linear"}}, "league.toml [main]: unknown key 'wieghting'. Did you mean 'weighting'?"),
        (
            {"main": {"weighting": "cubed"}},
            "league.toml [main]: weighting = 'cubed'. Use one of 'variance', 'linear', 'capped', 'squared'.",
        ),
        ({"main": 3}, "league.toml: main = 3. Write a table: [main]."),
        (
            {"evaluator": {"core_share": 0.0}},
            "league.toml [evaluator]: count = 1, core_share = 0, match_games = 64. "
            "Count from 0, give a share of 1 at most, and matches of 2 games or more.",
        ),
        (
            {"services": {"mine": {"service": "nowhere"}}},
            "league.toml [services.mine]: service = 'nowhere', count = 1. "
            'Write service = "module:Class", and a count from 1.',
        ),
        ({"members": 0}, "league.toml: members = 0, live_every_s = 10. Give more than 0."),
    ],
)
def test_a_wrong_league_file_is_one_sentence(table, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_league(table)
    assert str(caught.value) == sentence


def test_a_role_changes_its_own_defaults_alone():
    file = parse_league({"main_exploiter": {"count": 2}, "league_exploiter": {"count": 1}})
    assert file.main_exploiter == replace(MAIN_EXPLOITER, count=2)
    names = ["main-0", "main-exploiter-0", "main-exploiter-1", "league-exploiter-0"]
    assert [one.name for one in file.learners()] == names
    assert file.rules("main") == MAIN


@pytest.mark.parametrize(
    "wrong",
    [{"least_steps": 0}, {"freeze_every_steps": 10}, {"count": -1}, {"freeze_at": 1.5}, {"reset_chance": -0.1}],
)
def test_rules_that_cannot_hold_are_refused(wrong):
    with pytest.raises(ConfigError):
        RoleRules(**wrong)
