"""A distribution of returns, for the terminal and as a picture."""

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparring.durable import disk_errors, replace_file
from sparring.errors import ConfigError
from sparring.wire.chunk import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FORMATS = (".png", ".svg", ".pdf")
BAR_CELLS = 48
TICKS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers that say how returns are spread."""

    mean: float
    sd: float
    quantiles: dict[str, float]  # "p05" …


def summary(returns: Array) -> Summary:
    """Mean, deviation and quantiles."""
    values = np.quantile(returns, QUANTILES)
    names = [f"p{100 * q:02.0f}" for q in QUANTILES]
    return Summary(float(returns.mean()), float(returns.std()), dict(zip(names, map(float, values), strict=True)))


def lines(returns: Array, rows: int = 10) -> list[str]:
    """Bars of text, one line for each range of returns; whole numbers are named as such."""
    edges = _edges(returns, rows)
    counts, _ = np.histogram(returns, bins=edges)
    widest = max(1, int(counts.max()))
    labels = [_label(low, high, whole=_whole(returns)) for low, high in pairwise(edges.tolist())]
    width = max(map(len, labels))
    bars = ["█" * max(int(count > 0), round(BAR_CELLS * count / widest)) for count in counts]
    return [f"{label:>{width}}  {bar} {count}" for label, bar, count in zip(labels, bars, counts, strict=True)]


def check_format(path: Path, where: str) -> None:
    """ConfigError where no picture can be drawn into such a file; `where` is the option or argument that named it."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path.name!r} is no picture", where=where, do=f"End its name in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", where=where, do="Make it first")


def new_figure(width: float = 8.0, height: float = 4.2) -> "Figure":
    """An empty figure that no window shows; a notebook shows it, also where pyplot was not imported."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _picture(self, "png")

    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot(returns: Array, path: Path, title: str) -> None:
    """Draw the distribution into `path`."""
    save_picture(draw(returns, title), path)


def draw(returns: Array, title: str) -> "Figure":
    """The distribution with its mean, deviation and quantiles."""
    from matplotlib.ticker import MaxNLocator

    told = summary(returns)
    at = told.quantiles
    figure = new_figure()
    axes = figure.subplots()
    axes.hist(returns, bins=_edges(returns, 30).tolist(), color="#9ecae9", edgecolor="white", linewidth=0.5)
    band = f"mean ± sd: {told.mean - told.sd:.4g} … {told.mean + told.sd:.4g}"
    axes.axvspan(told.mean - told.sd, told.mean + told.sd, color="#e45756", alpha=0.08, zorder=0, label=band)
    axes.axvline(told.mean, color="#e45756", linewidth=1.8, label=f"mean {told.mean:.4g}, sd {told.sd:.4g}")
    axes.axvline(at["p50"], color="#333333", linestyle="--", label=f"median {at['p50']:.4g}")
    for low, high, colour, style in (("p25", "p75", "#54728c", "-."), ("p05", "p95", "#888888", ":")):
        label = f"{low} {at[low]:.4g}, {high} {at[high]:.4g}"
        axes.axvline(at[low], color=colour, linestyle=style, label=label)
        axes.axvline(at[high], color=colour, linestyle=style)
    figure.suptitle(title, fontsize="medium")  # of the figure: it has the legend's width too
    axes.set(xlabel="return", ylabel="episodes")
    axes.xaxis.set_major_locator(MaxNLocator(integer=_whole(returns), steps=TICKS))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=TICKS))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # never over the bars
    return figure


def save_picture(figure: "Figure", path: Path) -> None:
    """The figure in a file of that format, whole; StoreFailed where the disk would not keep it."""
    drawn = _picture(figure, path.suffix[1:].lower())
    with disk_errors(path):
        replace_file(path, drawn)


def _picture(figure: "Figure", kind: str) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=120)
    return drawn.getvalue()


def _edges(returns: Array, bins: int) -> Array:
    """Ranges of equal width. Those of whole numbers hold equally many of them: otherwise the bars would comb."""
    low, high = float(returns.min()), float(returns.max())
    if _whole(returns):
        width = -(-int(high - low + 1) // bins)
        count = -(-int(high - low + 1) // width)
        return low - 0.5 + width * np.arange(count + 1)
    if low == high:
        return np.array([low - 0.5, high + 0.5])
    return np.linspace(low, high, bins + 1)


def _whole(returns: Array) -> bool:
    return bool((returns == np.round(returns)).all())


def _label(low: float, high: float, *, whole: bool) -> str:
    if not whole:
        return f"{low:.4g} … {high:.4g}"
    first, last = round(low + 0.5), round(high - 0.5)
    return str(first) if first == last else f"{first} … {last}"
