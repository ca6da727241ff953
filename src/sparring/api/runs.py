"""`sparring.train` and `sparring.sweep`: one call from a game's name, or a Gymnasium environment, to runs with their
metrics and models; `sparring.runs`: the runs of a data folder."""

import json
import logging
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.acting.return_histogram import check_format, new_figure, save_picture
from sparring.api.models import LoadedModel, check_arguments, python_words
from sparring.api.models import settings as load_settings
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.learn.plan import PROGRAM, TrainRequest, default_algo, with_nodes
from sparring.learn.runs.summary import RunSummary, list_runs, metrics_columns, read_run
from sparring.learn.runs.train import TrainOptions, TrainResult
from sparring.learn.runs.train import train as run_training
from sparring.registry import open_registry
from sparring.user_code import name_given
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId, ModelId

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sparring.learn.sweeps.sweep import SweepResult, TrialReport


@dataclass(frozen=True)
class Run:
    """A training run. Its folder stays, and `spar train --resume` or `resume=` goes on with it."""

    folder: Path
    result: TrainResult | None  # None where `sparring.runs` found it
    registry_url: str

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def state(self) -> str:
        """ "done", or "stopped" where Ctrl-C ended it; of a run of `sparring.runs` also "running", "failed", "died"."""
        return self.summary.state if self.result is None else self.result.state

    @property
    def summary(self) -> RunSummary:
        """What the folder says now: game, algo, seed, state, model, and the newest steps, seconds and return."""
        return read_run(self.folder)

    @property
    def return_mean(self) -> float | None:
        """Of the published model's evaluation; None where the game has no simulator here, or no model is published."""
        if self.result is not None:
            played = self.result.published.evaluation
            return None if played is None else played.mean
        found = self.summary
        with open_registry(self.registry_url) as registry:
            listed = [one.evidence for one in registry.models(GameId(found.game)) if one.card.id == found.model]
        return None if not listed or listed[0] is None else listed[0].mean

    @cached_property
    def metrics(self) -> dict[str, Array]:
        """One array for each metric, one entry a line of metrics.jsonl; NaN where a line has none."""
        return metrics_columns(self.folder)

    @cached_property
    def model(self) -> LoadedModel:
        """The model that the run published last, of the first kind of seats; Missing where there is none."""
        with open_registry(self.registry_url) as registry:
            if self.result is not None:
                return LoadedModel(registry.fetch(self.result.published.model), self.result.plan.spec)
            found = self.summary
            return LoadedModel(registry.fetch(ModelId(found.model or "")), spec_of(found.game))

    @cached_property
    def models(self) -> tuple[LoadedModel, ...]:
        """The models that the run published last: one for each kind of seats."""
        published = () if self.result is None else self.result.published.others
        with open_registry(self.registry_url) as registry:
            return (self.model, *(LoadedModel(registry.fetch(one.model), self.model.spec) for one in published))

    def plot(self, file: str | Path | None = None) -> "Figure":
        """The mean return by steps, as a figure, and as a .png, .svg or .pdf where a file is named.

        A run that learned from records alone has no returns: its loss by updates.
        """
        if file is not None:
            check_format(Path(file), "plot(file)")
        figure = new_figure()
        axes, metrics = figure.subplots(), self.metrics
        plays = bool(np.isfinite(metrics.get("return_mean", np.nan)).any())
        x, y, label = (
            ("env_steps", "return_mean", "mean of the last 100 episodes") if plays else ("updates", "loss", "loss")
        )
        marker = "o" if len(metrics[x]) == 1 else ""  # a line of one point would not be seen
        axes.plot(metrics[x], metrics[y], color="#1f5f99", marker=marker, label=label)
        if plays:
            low, high = (metrics[y] + sign * metrics["return_sd"] for sign in (-1, 1))
            axes.fill_between(metrics[x], low, high, color="#9ecae9", alpha=0.5, linewidth=0, label="± sd")
        words = ("steps", "return") if plays else (x, y)
        axes.set(xlabel=words[0], ylabel=words[1], title=f"{self.summary.game}, {self.summary.algo}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        if file is not None:
            save_picture(figure, Path(file))
        return figure

    def __repr__(self) -> str:
        if self.result is None:
            return f"<run {self.name}>"
        earned = "" if self.return_mean is None else f", return {self.return_mean:.4g}"
        return f"<run {self.name}: {self.state} after {self.result.position:,} steps{earned}>"


@check_arguments
def train(  # noqa: PLR0913  (one argument for each option of `spar train`)
    game: Any,
    algo: str | None = None,
    *,
    until: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    source: str = "sim",
    topology: str | None = None,
    envs: int | None = None,
    actors: int | None = None,
    learners: int | None = None,
    on: str | None = None,
    settings: Mapping[str, Any] | None = None,
    network: Any = None,
    resume: str | bool | Run = False,
    promote: bool = True,
    track: str | Sequence[str] | None = None,
    nodes: str | Sequence[str] | None = None,
    accept_nodes: str | None = None,
    contribute: str | None = None,
    nodes_cert: str | Path | None = None,
    nodes_key: str | Path | None = None,
    data: str | Path | None = None,
    config: str | Path | None = None,
    config_set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Train a bot and publish it; what `spar train` does with the options of the same names.

    `game` is an id ("cartpole", "gym:Acrobot-v1"), a Gymnasium environment, or a function that makes one.
    `network` is a class of torch modules or a function that makes one, a module, or "module:name" (docs/models.md).
    `settings` are the algorithm's ({"learning_rate": 1e-3}), `config_set` those of spar.toml
    ({"replay.capacity_steps": 50_000}). `resume` is True (the newest run of the game and algorithm), a run or its name.
    `track` sends the metrics to "tensorboard" (the default), "wandb", "mlflow" or "module:name", or to several of them.
    `nodes` are machines that learn, each as the line that `spar node --listen` printed; `accept_nodes` is HOST:PORT
    where they join, by the line that is shown then (docs/nodes.md).
    Ctrl-C ends the run after its current update, and publishes what it learned; a second one stops at once.
    """
    values = dict(settings or {})
    if network is not None:
        values["network"] = network
    if not isinstance(values.get("network", ""), str):
        values["network"] = name_given(values["network"], "network")
    if resume is not False and network is not None:
        del values["network"]  # the run's own name of it
    found = load_settings(data, config, tuple(_assignment(item) for item in (config_set or {}).items()))
    if track is not None:
        found = found.layered({"train.track": _texts(track)}, PROGRAM, above=True)
    certificate = (str(nodes_cert or ""), str(nodes_key or ""))
    found, nodes_plan = with_nodes(found, PROGRAM, _texts(nodes or ()), accept_nodes or "", contribute, *certificate)
    request = TrainRequest(
        game=game if isinstance(game, str) else _registered(game),
        algo=algo or default_algo(source),
        source=source,
        topology=topology,
        seed=seed,
        steps=steps,
        envs=envs,
        actors=actors,
        learners=learners,
        on=on,
        settings=tuple(_assignment(item) for item in values.items()),
        nodes=nodes_plan,
        origin=PROGRAM,
    )
    go_on = resume.name if isinstance(resume, Run) else None if resume is False else "" if resume is True else resume
    options = TrainOptions(minutes, until, go_on, promote, tuple(sys.argv))
    with _progress_line(progress) as show, _stopped_by_ctrl_c() as watch:
        result = run_training(request, options, found, show, watch)
    return Run(Path(found.data) / "runs" / result.run, result, found.registry_url)


@check_arguments
def runs(game: str | None = None, algo: str | None = None, *, data: str | Path | None = None) -> list[Run]:
    """The runs of the data folder, or those of one game or algorithm: running ones first, then the newest."""
    found = load_settings(data)
    folder = Path(found.data) / "runs"
    wanted = [one for one in list_runs(folder) if game in (None, one.game) and algo in (None, one.algo)]
    return [Run(folder / one.run, None, found.registry_url) for one in wanted]


@check_arguments
def sweep(  # noqa: PLR0913  (as `train`)
    game: Any,
    algo: str | None = None,
    *,
    space: Mapping[str, Mapping[str, Any]],
    seed: int = 0,
    parallel: int | None = None,
    on: str | None = None,
    settings: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    config: str | Path | None = None,
    config_set: Mapping[str, Any] | None = None,
    on_trial: Callable[["TrialReport"], None] = lambda trial: None,
    progress: bool = True,
    **table: Any,
) -> "SweepResult":
    """Search the algorithm's settings in `space` by many runs; what `spar train --sweep` does (docs/training.md).

    `space` and the other arguments (trials, steps, minutes, seeds, objective, target, prune, name) are the tables
    [space] and [sweep] of sweep.toml: `space={"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}`. The same
    call goes on with a sweep that was interrupted. The result has `trials` and the `best` of them, each with
    `settings`, `value` and the names of its `runs`; `on_trial` gets each trial that ends.
    """
    from sparring.learn.sweeps.sweep import SweepCallbacks
    from sparring.learn.sweeps.sweep import sweep as run_sweep

    found = load_settings(data, config, tuple(_assignment(item) for item in (config_set or {}).items()))
    request = TrainRequest(
        game=game if isinstance(game, str) else _registered(game),
        algo=algo or "ppo",
        seed=seed,
        on=on,
        settings=tuple(_assignment(item) for item in (settings or {}).items()),
        origin=PROGRAM,
    )
    tables = {"sweep": table, "space": {key: dict(value) for key, value in space.items()}}
    with _progress_line(progress) as show, _stopped_by_ctrl_c() as watch:
        callbacks = SweepCallbacks(lambda trial, run, now: show(f"trial {trial} run {run}  {now}"), on_trial, watch)
        return run_sweep(tables, request, found, callbacks, tuple(sys.argv), parallel)


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _registered(environment: Any) -> str:
    from sparring.games.gymnasium import register

    return register(environment)


@contextmanager
def _progress_line(wanted: bool) -> Iterator[Callable[[object], None]]:
    """Called with each progress; meanwhile what the package logs of its waits is shown, too."""
    if not wanted:
        yield lambda progress: None
        return
    line, log = _ProgressLine(), logging.getLogger("sparring")
    level = log.level
    log.addHandler(line)
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    try:
        yield line.show
    finally:
        log.removeHandler(line)
        log.setLevel(level)
        line.end()


class _ProgressLine(logging.Handler):
    """One line that changes in a notebook and in a terminal, elsewhere plain lines; on standard error, since standard
    output is the program's own. What is logged stays beside it, in a notebook a wait ("… …") only until it is over."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._notebook, self._live = "ipykernel" in sys.modules, sys.stderr.isatty()
        self._display_id, self._progress, self._drawn = secrets.token_hex(8), "", False

    def show(self, progress: object) -> None:
        self.acquire()  # other threads log
        try:
            self._progress = str(progress)
            self._draw(self._progress)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        text = python_words(record.getMessage())
        if self._notebook and text.endswith("…"):
            self._draw(f"{self._progress}\n{text}".strip())
        else:
            self.end()
            sys.stderr.write(f"{text}\n")

    def end(self) -> None:
        """The line stays as it is."""
        if self._drawn and self._notebook:
            self._draw(self._progress)
        elif self._drawn:
            sys.stderr.write("\n")
            self._drawn = False

    def _draw(self, text: str) -> None:
        if self._notebook:
            from IPython.display import display

            line = {"text/plain": text}
            display(line, raw=True, display_id=self._display_id, update=self._drawn)  # type: ignore[no-untyped-call]
        else:
            sys.stderr.write(f"\r\x1b[2K{text}" if self._live else f"{text}\n")
            sys.stderr.flush()
        self._drawn = self._notebook or self._live


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[Callable[[Any], object]]:
    """Called with the loop or sweep, which handles SIGINT until the block ends; then the old handler is restored.

    Python sets signal handlers in the main thread alone: in another one Ctrl-C stays with the caller's program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda loop: None
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield lambda loop: signal.signal(signal.SIGINT, loop.on_signal)
    finally:
        signal.signal(signal.SIGINT, before)


def _assignment(item: tuple[str, Any]) -> str:
    """ "key=value" with the value in TOML, which writes text, numbers and lists as JSON does."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        do = "Give text, a number, True or False, or a list of them"
        raise ConfigError(f"{item[0]} = {value!r}", where="sparring.train(settings, config_set)", do=do)

    return f"{item[0]}={json.dumps(plain(None) if item[1] is None else item[1], default=plain)}"
