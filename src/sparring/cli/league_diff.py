"""`spar league diff`: what a change of the rules does to seats, first moves and members (league/diff.py)."""

import argparse
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, stopping
from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.league.diff import Change, Report

SHORT = 24


def diff_arguments(parser: argparse.ArgumentParser) -> None:
    most = "diff: at most so many games in each version (20000)"
    parser.add_argument("--most-games", type=int, default=20_000, metavar="N", help=most)
    parser.add_argument("--seed", type=int, metavar="S", help="diff: repeat the games of an earlier one")


def show_diff(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.acting.return_histogram import check_format
    from sparring.league.diff import compare, members_of_both, two_versions
    from sparring.registry import open_registry

    for option, value in (("--most-games", args.most_games), ("--seed", args.seed)):
        if value is not None and value < (option == "--most-games"):
            raise ConfigError(f"{option} {value}", where="spar league diff", do="Give a larger number")
    if args.plot is not None:
        check_format(args.plot, "--plot")
    versions = two_versions(args.what[1:], args.config.games)
    with open_registry(args.config.registry_url) as registry:
        members = members_of_both(versions, registry, args.models)
    output.say(f"{versions[0].label} → {versions[1].label}: {', '.join(name[:SHORT] for name in members)} play both")
    seed = secrets.randbits(48) if args.seed is None else args.seed
    with stopping() as stopped:

        def going(games: int) -> bool:
            output.progress(f"{games} games in each version")
            return not stopped.is_set()

        report = compare(versions, members, most_games=args.most_games, seed=seed, going=going)
    _table(report, output)
    if args.plot is not None:
        _plot(report, args.plot)
        output.say(f"drawn into {args.plot}")
    return {"seed": seed, "report": report}


def _table(report: "Report", output: Output) -> None:
    first, second = report.versions
    rows = [(one.kind, one.name[:SHORT], *_figures(one, report), one.rounds) for one in report.changes]
    output.table(("", "", first, second, "change", f"in {second}", "rounds"), rows)
    confidence = f"All {len(report.changes)} lines hold together with 95 % confidence (each at {report.alpha:.2g})"
    ended = "" if report.decided else "; more --most-games would decide more"
    output.say(f"{report.games} games in each version. {confidence}{ended}.")


def _figures(one: "Change", report: "Report") -> tuple[str, str, str, str]:
    def shown(value: float | None, sign: str = "") -> str:
        return "–" if value is None else f"{value:{sign}.1%}" if report.opponents else f"{value:{sign}.4g}"

    if one.before is None or one.after is None:
        return shown(one.before), shown(one.after), "", "gone" if one.after is None else "new"
    return shown(one.before), shown(one.after), f"{shown(one.low, '+')} to {shown(one.high, '+')}", one.verdict


def _plot(report: "Report", path: Path) -> None:
    """Draw every row's change with its interval into a .png, .svg or .pdf."""
    from sparring.acting.return_histogram import new_figure, save_picture

    rows = [one for one in report.changes if one.before is not None and one.after is not None][::-1]
    figure = new_figure(height=1.2 + 0.28 * len(rows))
    axes, colours = figure.subplots(), {"better": "#54a24b", "worse": "#e45756"}
    for place, one in enumerate(rows):
        colour = colours.get(one.verdict, "#888888")
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2.0)
        axes.plot((one.after or 0.0) - (one.before or 0.0), place, "o", color=colour)
    axes.axvline(0.0, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{one.kind} {one.name[:20]}" for one in rows])
    axes.set(xlabel="change of the share of points" if report.opponents else "change of the mean return")
    figure.suptitle(f"{report.versions[0]} → {report.versions[1]}, {report.games} games each", fontsize="medium")
    save_picture(figure, path)
