"""What `spar league show` says: the ladder, the payoff matrix, the spinning top, the newest matches, a picture. Not a
command of its own."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, recorded_play
from sparring.errors import Missing

if TYPE_CHECKING:
    from sparring.league.payoff import Match
    from sparring.league.standings import Standings

SHORT = 12
NEWEST = 5  # matches that are listed
WIDEST = 16  # members in the table of pairs
LONGEST_TOP = 12  # layers that are named in one line


def show(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.acting.return_histogram import check_format
    from sparring.games.catalogue import spec_of
    from sparring.league.matches import MatchFile
    from sparring.league.people import PeopleGames
    from sparring.league.standings import Ladder

    if args.plot is not None:
        check_format(args.plot, "--plot")
    spec = spec_of(game)
    with MatchFile(Path(args.config.data), spec.id) as file:
        matches = file.all()
    if not args.people:
        if not matches:
            do = f"Play some: `spar league {game}`"
            raise Missing(f"no match of {game} was played yet", where="spar league", do=do)
        found = Ladder().standings(matches)
    else:
        with recorded_play(args.config) as store:
            reader = PeopleGames(store, spec)
            reader.update()
        people = reader.now
        if not matches and not people.games:
            raise Missing(f"nobody played {game} yet", where="spar league", do=f"Play: `spar league {game}`")
        found = Ladder().standings(matches, people, apart=True)
    _tables(found, matches, output)
    result = _json(game, found, matches, people=args.people)
    if args.plot is not None:
        from sparring.league.standings_plot import plot

        plot(found, args.plot, game)
        output.say(f"drawn into {args.plot}")
        result["plot"] = str(args.plot)
    return result


def _tables(found: "Standings", matches: "list[Match]", output: Output) -> None:
    rows = [
        (
            short(one.member),
            f"{one.elo:+.0f}",
            f"{one.low:+.0f} to {one.high:+.0f}",
            f"{one.mu:.1f} ± {one.sigma:.1f}",
            one.games,
            f"{one.points:.1%}",
            f"{one.nash:.0%}",
            f"{one.nash_skill:.0%}",
            f"{one.alpha_rank:.0%}",
        )
        for one in found.ladder
    ]
    output.table(("member", "Elo", "95 %", "openskill", "games", "points", "Nash", "against it", "α-rank"), rows)
    output.say()
    names = [one.member for one in found.ladder[:WIDEST]]
    pairs = [
        (f"{a + 1} {short(name)}", *(_pair(found, a, b) for b in range(len(names)))) for a, name in enumerate(names)
    ]
    output.table(("points of row against column", *(str(place + 1) for place in range(len(names)))), pairs)
    if len(found.ladder) > WIDEST:
        output.say(f"the {WIDEST} strongest of {len(found.ladder)}; --json has all")
    output.say()
    output.say(spinning_top_line(found))
    if found.persons:
        output.say(f"{found.people_games} games of {found.persons} persons are among the results")
    for one in matches[: -NEWEST - 1 : -1]:
        score = f"{one.wins} won, {one.draws} drawn, {one.losses} lost"
        output.say(f"match {one.id[:SHORT]}: {short(one.first)} against {short(one.second)}: {score}")


def _pair(found: "Standings", a: int, b: int) -> str:
    won, drawn, lost = found.wins[a][b], found.draws[a][b], found.wins[b][a]
    games = won + drawn + lost
    return f"{(won + drawn / 2) / games:.0%}" if games else ""


def spinning_top_line(found: "Standings") -> str:
    """How transitive the league is, in a line."""
    top = found.top
    widths = " ".join(str(len(layer.members)) for layer in top.layers[:LONGEST_TOP])
    more = " …" if len(top.layers) > LONGEST_TOP else ""
    cycles = f"{top.cyclic_triples} of {top.triples} triples are cycles" if top.triples else "no triple met yet"
    return (
        f"spinning top: {top.transitive:.0%} of the results' variance is transitive, {cycles}; "
        f"members in each layer, the strongest first: {widths}{more}"
    )


def _json(game: str, found: "Standings", matches: "list[Match]", *, people: bool) -> dict[str, Any]:
    names = [one.member for one in found.ladder]
    n = range(len(names))
    counts = {
        names[a]: {names[b]: [found.wins[a][b], found.draws[a][b], found.wins[b][a]] for b in n if a != b} for a in n
    }
    rates = {a: {b: _rate(*counts[a][b]) if a != b else 0.5 for b in names} for a in names}
    return {
        "game": game,
        "matches": found.matches,
        "ratings": found.ladder,
        "nash": {one.member: one.nash for one in found.ladder},
        "win_rates": rates,
        "results": counts,  # won, drawn, lost
        "spinning_top": found.top,
        "curves": found.curves,
        "people": {"shown": people, "persons": found.persons, "games": found.people_games},
        "newest": [one.id for one in matches[: -NEWEST - 1 : -1]],
    }


def _rate(won: float, drawn: float, lost: float) -> float:
    return (won + drawn / 2) / (won + drawn + lost) if won + drawn + lost else 0.5


def short(member: str) -> str:
    """A model by the beginning of its id, as everywhere; others by their whole name."""
    return member if ":" in member else member[:SHORT]
