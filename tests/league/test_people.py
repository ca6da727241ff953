"""People's games from a real store: on the league's scale, read on from where one stopped, gone when erased."""

import numpy as np
import pytest

from derived import player_of
from recorded_games import MODEL, SPEC, sat
from sparring.league.people import HOUR_MS, MAX_PERSONS, PeopleGames, pairs
from sparring.store import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/experience.db") as opened:
        yield opened


def put(store, *games):
    for chunks in games:
        assert {kept.verdict for kept in store.append(chunks)} == {"new"}


def test_games_of_people_are_results_against_models_and_scripts(store):
    won, lost, drawn = sat(1, 1.0), sat(2, -1.0, seat=1), sat(3, 0.0, bot="script:tactical")
    other = sat(4, 1.0, client=5)
    alone = sat(5, 1.0, source="selfplay"), sat(6, None), sat(7, 1.0)[:1]
    put(store, won, lost, drawn, other, *alone)
    people = PeopleGames(store, SPEC)
    people.update()
    assert (people.now.games, people.now.persons) == (4, 2)
    together = {(one.first, one.second): one for one in pairs(people.now.results(apart=False))}
    assert together["people", MODEL].wins == 2
    assert together[MODEL, "people"].wins == 1
    apart = {(one.first, one.second): one for one in pairs(people.now.results(apart=True))}
    alice, carol = (f"person:{player_of(client)[:8]}" for client in (0, 5))
    assert apart[alice, MODEL].wins == apart[MODEL, alice].wins == apart[carol, MODEL].wins == 1
    assert apart[alice, "script:tactical"].draws == 1
    assert all(one.played_at_ms % HOUR_MS == 0 for one in apart.values())


def test_what_came_since_is_added_once_and_what_was_erased_is_gone(store):
    put(store, sat(1, 1.0), sat(2, 1.0, client=1))
    people = PeopleGames(store, SPEC)
    people.update()
    people.update()
    assert people.now.games == 2
    late = sat(3, -1.0)
    put(store, late[:1])
    people.update()
    assert people.now.games == 2  # its second seat is not there yet
    put(store, late[1:], sat(4, 1.0))
    people.update()
    people.update()
    assert (people.now.games, people.now.persons) == (4, 2)
    store.erase(SPEC.id, player_of(1))
    people.update()
    assert (people.now.games, people.now.persons) == (3, 1)


def test_only_the_most_frequent_persons_are_members_of_their_own(store):
    for client in range(MAX_PERSONS + 5):
        put(store, *(sat(100 * client + at, 1.0, client=client) for at in range(1 if client < 5 else 2)))
    people = PeopleGames(store, SPEC)
    people.update()
    names = {name for _, one in people.now.results(apart=True) for team in one.teams for name in team}
    assert len(names) == MAX_PERSONS + 2
    assert people.now.persons == MAX_PERSONS + 5
    assert "people" in names


def test_people_and_models_are_rated_on_one_scale(store):
    from sparring.league.payoff import Match, Payoff
    from sparring.league.ratings import elo_ratings

    rng = np.random.default_rng(1)
    put(store, *(sat(at, 1.0 if rng.random() < 0.75 else -1.0) for at in range(60)))
    people = PeopleGames(store, SPEC)
    people.update()
    matches = [Match("m", MODEL, "script:random", 1, 75, 0, 25), *pairs(people.now.results(apart=False))]
    elo = {
        one.member: one.elo
        for one in elo_ratings(Payoff.of(["people", MODEL, "script:random"], matches), "script:random")
    }
    assert elo["people"] > elo[MODEL] > 100
