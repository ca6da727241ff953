"""A league as a picture: the ladder with its intervals, the payoff matrix, rating curves and the spinning top."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparring.acting.return_histogram import new_figure, save_picture
from sparring.league.standings import Standings
from sparring.wire.strengths import Strengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHORT = 12
DOT, BEST, QUIET = "#4c78a8", "#e45756", "#888888"
MOST_NUMBERS = 16  # members up to which each cell of the matrix says its number


def plot(found: Standings, path: Path, game: str) -> None:
    """Draw it into `path`."""
    figure = new_figure(13.0, max(8.0, 4.5 + 0.28 * len(found.ladder)))
    axes = figure.subplots(2, 2).flatten()
    _ladder(axes[0], found)
    _matrix(axes[1], found)
    _curves(axes[2], found)
    _top(axes[3], found)
    people = f", {found.people_games} games of {found.persons} persons" if found.persons else ""
    figure.suptitle(f"{game}: {len(found.ladder)} members, {found.matches} matches, {found.games} games{people}")
    save_picture(figure, path)


def plot_strengths(found: Strengths, path: Path, style: str | None = None) -> None:
    """Draw the ladder of strengths, or that of a style, into `path`."""
    steps = found.steps if style is None else found.style(style).steps
    figure = new_figure(7.0, 4.5)
    panel = figure.subplots()
    at = np.linspace(0, 1, len(steps))
    elo = np.array([one.elo for one in steps])
    reach = np.array([[one.elo - one.low for one in steps], [one.high - one.elo for one in steps]])
    panel.errorbar(at, elo, yerr=reach, fmt="o-", color=DOT, ecolor=QUIET, capsize=3, markersize=5)
    for place, one in zip(at, steps, strict=True):
        share = "" if one.share == 1.0 else f" {one.share:.0%}"
        panel.annotate(f"{one.model[:6]}{share}", (place, one.elo), xytext=(5, -9), textcoords="offset points", size=7)
    panel.set_xlabel("strength")
    panel.set_ylabel("Elo above the weakest, with 95 % confidence")
    of = f"{found.games:,} games" if style is None else f"style {style}"
    panel.set_title(f"{found.game}: {len(steps)} strengths, {of}")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


def _ladder(panel: "Axes", found: Standings) -> None:
    at = np.arange(len(found.ladder))
    elo = np.array([one.elo for one in found.ladder])
    reach = np.array([[one.elo - one.low for one in found.ladder], [one.high - one.elo for one in found.ladder]])
    panel.errorbar(elo, at, xerr=reach, fmt="o", color=DOT, ecolor=QUIET, capsize=3, markersize=5)
    panel.set_yticks(at, [short(one.member) for one in found.ladder])
    panel.invert_yaxis()
    panel.set_xlabel("Elo, with 95 % confidence" + (f"; {found.anchor} has 0" if found.anchor else "; the mean has 0"))
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def _matrix(panel: "Axes", found: Standings) -> None:
    wins, draws = np.array(found.wins), np.array(found.draws)
    games = wins + wins.T + draws
    rates = np.where(games > 0, (wins + draws / 2) / np.where(games > 0, games, 1), np.nan)
    shown = panel.imshow(np.ma.masked_invalid(rates), cmap="RdBu", vmin=0, vmax=1)
    names = [short(one.member) for one in found.ladder]
    panel.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="small")
    panel.set_yticks(range(len(names)), names, fontsize="small")
    for a, b in np.argwhere(games > 0) if len(names) <= MOST_NUMBERS else ():
        ink = "white" if abs(rates[a, b] - 0.5) > 0.3 else "black"
        panel.text(b, a, f"{100 * rates[a, b]:.0f}", ha="center", va="center", fontsize="x-small", color=ink)
    panel.set_title("% of points of row against column", fontsize="medium")
    panel.figure.colorbar(shown, ax=panel, shrink=0.8)


def _curves(panel: "Axes", found: Standings) -> None:
    for number, (name, points) in enumerate(found.curves.items()):
        at, colour = [one.games for one in points], f"C{number}"
        panel.plot(at, [one.elo for one in points], color=colour, label=short(name))
        panel.fill_between(
            at, [one.low for one in points], [one.high for one in points], color=colour, alpha=0.15, lw=0
        )
    panel.set(xlabel="games of the league", ylabel="Elo, with 95 % confidence")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _top(panel: "Axes", found: Standings) -> None:
    layers = found.top.layers
    at, widths = np.arange(len(layers)), [len(one.members) for one in layers]
    panel.barh(at, widths, left=[-width / 2 for width in widths], color=[BEST, *[DOT] * (len(layers) - 1)], height=0.8)
    for place, one in enumerate(layers):
        panel.text(0, place, str(len(one.members)), ha="center", va="center", color="white", fontsize="small")
    panel.set_yticks(at, [f"{one.strength:.0%}" for one in layers])
    panel.invert_yaxis()
    panel.set_xticks([])
    widest = max(widths) / 2 + 0.5
    panel.set(
        xlim=(-widest, widest), ylabel="layer's share of points", xlabel="members in each layer of Nash equilibria"
    )
    cycles = f"{found.top.cyclic_triples} of {found.top.triples} triples are cycles"
    panel.set_title(f"{found.top.transitive:.0%} of variance is transitive; {cycles}", fontsize="medium")
    panel.spines[["top", "right", "bottom"]].set_visible(False)


def short(member: str) -> str:
    """A model by the beginning of its id."""
    return member if ":" in member else member[:SHORT]
