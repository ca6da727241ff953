"""The league's service on a real file: results count once, whatever is sent twice, and a successor goes on."""

import pytest

from sparring.games.catalogue import spec_of
from sparring.league.matchmaking import WinRates
from sparring.league.service import LeagueService
from sparring.league.state import LeagueState, Result
from sparring.registry.file import FileRegistry

FILE = {"main": {"freeze_every_steps": 1000, "least_steps": 100}, "members": 2}


@pytest.fixture
def open_league(tmp_path):
    opened = []

    def league(**more):
        registry = f"file://{tmp_path}/models"
        opened.append(LeagueService("connect-four", str(tmp_path), FILE | more, registry, "memory://"))
        return opened[-1]

    yield league
    for one in opened:
        one.close()


def frozen(league, learner, name, steps):
    """The learner offers a model at so many steps, and does what the league says."""
    said = league.offer(learner, league.begin(learner)["generation"], name, steps)
    if said["freeze"]:
        league.freeze(learner, league.begin(learner)["generation"], name, said["reset"])
    return said


def test_a_new_league_has_the_games_scripts_and_models_of_before(open_league, model, tmp_path):
    before = FileRegistry(tmp_path / "models").publish(model("connect-four", 1))
    league = open_league()
    met = {name: player for name, player, _ in league.exchange("main-0", 0, [])["opponents"]}
    assert met == {
        "self": "",
        "script:random": "script:random",
        "script:tactical": "script:tactical",
        before: before,
    }


def test_results_count_once_and_a_successor_knows_them(open_league, tmp_path):
    league = open_league()
    sent = [["id-1", "script:random", 30, 0, 0], ["id-2", "script:tactical", 0, 10, 20]]
    first = league.exchange("main-0", 0, sent)
    assert league.exchange("main-0", 0, [sent[0]]) == first
    assert open_league().exchange("main-0", 0, sent) == first
    chances = {name: chance for name, _, chance in first["opponents"]}
    assert chances["script:tactical"] > chances["script:random"] == 0.0
    with LeagueState(tmp_path, spec_of("connect-four").id) as state:
        assert state.games() == 60


def test_a_frozen_main_agent_is_met_and_stands_for_champion(open_league):
    league = open_league()
    assert not frozen(league, "main-0", "a" * 64, 500)["freeze"]
    assert frozen(league, "main-0", "b" * 64, 1000)["freeze"]
    assert league.task(0) == {
        "kind": "gate",
        "model": "b" * 64,
    }
    assert league.task(1)["kind"] == "match"  # a second evaluator does not play the same gate
    again = open_league()  # the first was killed before the gate's verdict came
    assert again.task(0)["model"] == "b" * 64
    again.judged("b" * 64, "not promoted")
    assert again.task(0)["kind"] == "match"
    assert "b" * 64 in [name for name, _, _ in again.exchange("main-0", 0, [])["opponents"]]
    assert again.status()["frozen"] == 1


def test_an_exploiter_starts_again_also_when_the_answer_that_said_so_was_lost(open_league):
    league = open_league(main_exploiter={"least_steps": 100, "freeze_every_steps": 200})
    league.offer("main-0", 0, "a" * 64, 10)
    assert league.begin("main-exploiter-0") == {
        "generation": 0,
        "run": "",
        "start": "a" * 64,
    }
    league.started("main-exploiter-0", 0, "run-1")
    assert open_league().begin("main-exploiter-0")["run"] == "run-1"
    said = frozen(league, "main-exploiter-0", "e" * 64, 200)
    assert said["reset"]
    assert league.begin("main-exploiter-0")["generation"] == 1
    assert league.begin("main-exploiter-0")["run"] == ""
    assert league.offer("main-exploiter-0", 0, "f" * 64, 210)["reset"]
    league.freeze("main-exploiter-0", 0, "e" * 64, True)  # again: nothing happens
    assert league.begin("main-exploiter-0")["generation"] == 1


def test_results_of_an_earlier_generation_do_not_count_for_the_next(open_league):
    league = open_league(main_exploiter={"least_steps": 100, "freeze_every_steps": 200})
    league.offer("main-0", 0, "a" * 64, 10)
    frozen(league, "main-exploiter-0", "e" * 64, 200)
    league.exchange("main-exploiter-0", 0, [["late", "main-0", 0, 0, 50]])
    assert league._rates["main-exploiter-0"] == WinRates()


def test_members_above_the_limit_retire(open_league):
    league = open_league()
    for number in range(4):
        assert frozen(league, "main-0", f"{number}" * 64, 1000 * (number + 1))["freeze"]
        league.judged(f"{number}" * 64, "")
    assert league.status()["members"] == 2 + 2  # scripts and models
    assert open_league().status()["members"] == 4
    names = [name for name, _, _ in league.exchange("main-0", 0, [])["opponents"]]
    assert "3" * 64 in names


def test_an_unknown_learner_is_told_so(open_league):
    with pytest.raises(Exception, match=r"no learner 'main-9' is in league.toml. It has main-0, main-exploiter-0"):
        open_league().begin("main-9")


def test_one_result_of_two_that_cannot_be_written_leaves_none(tmp_path):
    with LeagueState(tmp_path, spec_of("connect-four").id) as state:
        with pytest.raises(Exception, match="cannot be used"):
            state.add_results("main-0", 0, [Result("a", "x", 1, 0, 0), Result("b", None, 1, 0, 0)])
        assert state.games() == 0
