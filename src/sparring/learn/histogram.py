"""A distribution of returns, for the terminal and as a picture."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparring.errors import ConfigError
from sparring.wire.chunk import Array

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FORMATS = (".png", ".svg", ".pdf")
BAR_CELLS = 48


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
    """Bars of text, one line for each range of returns."""
    counts, edges = np.histogram(returns, bins=_edges(returns, rows))
    widest = max(1, int(counts.max()))
    labels = [f"{low:.4g} … {high:.4g}" for low, high in pairwise(edges)]
    width = max(map(len, labels))
    bars = ["█" * max(int(count > 0), round(BAR_CELLS * count / widest)) for count in counts]
    return [f"{label:>{width}}  {bar} {count}" for label, bar, count in zip(labels, bars, counts, strict=True)]


def check_format(path: Path) -> None:
    """ConfigError where no picture can be drawn into such a file."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path.name!r} is no picture", where="--plot", do=f"End its name in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", where="--plot", do="Make it first")


def plot(returns: Array, path: Path, title: str) -> None:
    """Draw the distribution with its mean and quantiles into `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    told = summary(returns)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.hist(returns, bins=_edges(returns, 30).tolist(), color="#4c78a8")
    axes.axvline(told.mean, color="#e45756", label=f"mean {told.mean:.4g} ± {told.sd:.3g}")
    for name in ("p05", "p50", "p95"):
        axes.axvline(told.quantiles[name], color="#888888", linestyle=":", label=f"{name} {told.quantiles[name]:.4g}")
    axes.set(title=title, xlabel="return", ylabel="episodes")
    axes.legend()
    figure.savefig(path, dpi=120)


def _edges(returns: Array, bins: int) -> Array:
    low, high = float(returns.min()), float(returns.max())
    if low == high:
        return np.array([low - 0.5, high + 0.5])
    return np.linspace(low, high, bins + 1)
