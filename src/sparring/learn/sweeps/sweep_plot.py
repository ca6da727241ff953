"""A sweep as a picture: the objective trial by trial, and against every setting that was drawn."""

import json
from typing import TYPE_CHECKING

import numpy as np

from sparring.acting.return_histogram import new_figure, save_picture
from sparring.learn.sweeps.sweep import SweepResult, TrialReport
from sparring.learn.sweeps.sweep_file import SearchRange

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
DECADE = 10
DOT, BEST, QUIET = "#4c78a8", "#e45756", "#888888"
NAMES = {"return": "final return", "steps": "steps to the target", "seconds": "seconds to the target"}


def plot(swept: SweepResult) -> list[str]:
    """Draw sweep.png and sweep.svg into the sweep's folder; their paths. Nothing where no trial is complete."""
    whole = [one for one in swept.trials if one.value is not None]
    if not whole:
        return []
    panels = 1 + len(swept.file.space)
    columns = 2 if panels == 4 else min(COLUMNS, panels)
    rows = -(-panels // columns)
    figure = new_figure(4.4 * columns, 3.4 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    _by_trial(axes[0], swept, whole)
    for panel, one in zip(axes[1:], swept.file.space, strict=False):
        _by_setting(panel, one, swept, whole)
    for panel in axes[panels:]:
        panel.set_visible(False)
    for panel in axes[:panels]:
        panel.set_ylabel(NAMES[swept.file.sweep.objective])
        panel.grid(alpha=0.25)
    figure.suptitle(f"{swept.name}: {len(swept.trials)} trials")
    paths = [swept.folder / f"sweep.{ending}" for ending in ("png", "svg")]
    for path in paths:
        save_picture(figure, path)
    return [str(path) for path in paths]


def _by_trial(panel: "Axes", swept: SweepResult, whole: list[TrialReport]) -> None:
    from matplotlib.ticker import MaxNLocator

    at, values = [one.number for one in whole], np.array([one.value for one in whole], float)
    best = np.maximum if swept.file.sweep.objective == "return" else np.minimum
    panel.scatter(at, values, color=DOT, s=22, label="trial", zorder=3)
    panel.step(at, best.accumulate(values), where="post", color=BEST, label="best so far")
    for word in ("pruned", "failed"):
        if cut := [one.number for one in swept.trials if one.state == word]:
            panel.scatter(cut, [float(values.min())] * len(cut), color=QUIET, marker="x", s=22, label=word)
    panel.set_xlabel("trial")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(fontsize="small")


def _by_setting(panel: "Axes", one: SearchRange, swept: SweepResult, whole: list[TrialReport]) -> None:
    from matplotlib.ticker import NullFormatter

    values = np.array([trial.value for trial in whole], float)
    drawn = [trial.settings[one.key] for trial in whole]
    at = [one.choices.index(json.dumps(value)) if one.choices else float(value) for value in drawn]
    panel.scatter(at, values, c=[BEST if trial == swept.best else DOT for trial in whole], s=22, zorder=3)
    if one.choices:
        panel.set_xticks(range(len(one.choices)), one.choices)
        panel.set_xlim(-0.5, len(one.choices) - 0.5)
    elif one.log:
        panel.set_xscale("log")
        if one.high >= DECADE * one.low:
            panel.xaxis.set_minor_formatter(NullFormatter())  # the labels of every 2, 3, 4 … would overlap
        panel.set_xlim(one.low / 1.2, one.high * 1.2)
    panel.set_xlabel(one.key)
