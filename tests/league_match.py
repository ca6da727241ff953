"""A stored match of a league: `from league_match import store_match`."""

from dataclasses import replace
from pathlib import Path

from sparring.league.matches import MatchFile
from sparring.league.rounds import Member, play_match
from sparring.wire.ids import GameId


def store_match(data: Path) -> None:
    """Two games of Duel between two scripts; the match's id is "one"."""
    first, second = (Member(f"script:{name}", name) for name in ("tracker", "random"))
    with MatchFile(data, GameId("duel")) as file:
        file.add(replace(play_match("duel", first, second, 2), id="one"))
