"""A sweep: trials of an algorithm's settings, each one or several real runs, drawn by Optuna.

    <data>/sweeps/<name>/study.db              the trials so far
                         sweep.png, sweep.svg  their results

Every trial's sampler is seeded by the sweep's seed and the number of finished trials: a sweep that was interrupted and
resumed draws the same settings as an uninterrupted one.
"""

import fcntl
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.config import Config
from sparring.durable import disk_errors
from sparring.errors import ConfigError, Missing, Refused, StoreFailed, TrainingStopped
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import TrainRequest, assignments, plan
from sparring.learn.presets import preset_for
from sparring.learn.runs.train import TrainOptions, TrainResult, train
from sparring.learn.runs.training_loop import TrainingLoop, TrainProgress
from sparring.learn.sweeps.space import SearchRange, SweepFile, read_sweep

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

TENTHS = 10
MISSED = 2.0  # a run that did not reach the target counts as so many times what it took
STARTUP_TRIALS = 5  # that are drawn at random and never pruned


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One finished trial."""

    number: int  # from 1, interrupted trials left out
    state: str  # "complete", "pruned" or "failed"
    value: float | None
    settings: dict[str, str]  # TOML
    runs: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All trials of a sweep so far."""

    name: str
    folder: Path
    file: SweepFile
    state: str  # "done" or "stopped"
    trials: tuple[TrialReport, ...]

    @property
    def best(self) -> TrialReport | None:
        """The complete trial with the best value; None where there is none."""
        complete = [one for one in self.trials if one.state == "complete" and one.value is not None]
        sign = 1 if self.file.sweep.objective == "return" else -1
        return max(complete, key=lambda one: sign * (one.value or 0.0), default=None)

    @property
    def flags(self) -> str:
        """The best settings for `spar train`."""
        settings = {} if self.best is None else self.best.settings
        return " ".join(f"--algo-set {shlex.quote(f'{key}={text}')}" for key, text in settings.items())


@dataclass(frozen=True, slots=True)
class SweepCallbacks:
    """What a sweep calls while it runs."""

    on_progress: Callable[[int, int, TrainProgress], None]  # trial's number from 1, run of the trial from 1
    on_trial: Callable[[TrialReport], None]
    on_run: Callable[[TrainingLoop], None] = lambda loop: None  # before each run, so that a signal can stop it


def sweep(
    path: Path, request: TrainRequest, config: Config, callbacks: SweepCallbacks, argv: tuple[str, ...] = ()
) -> SweepResult:
    """Run the sweep's remaining trials; a stopped sweep keeps those that are finished."""
    algorithm = open_algorithm(request.algo)
    plan(request, config)  # raises where no trial could run
    fixed = dict(preset_for(request.game, algorithm.name).settings) | assignments(request.settings)
    file = read_sweep(path, algorithm, fixed)
    name = file.sweep.name or f"{request.game}-{request.algo}-{path.stem}"
    folder = Path(config.data) / "sweeps" / "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    with _study(folder, file) as study:
        _check_same(study, file, request, folder.name)
        state = _Trials(study, file, request, config, callbacks, argv).run()
        return SweepResult(folder.name, folder, file, state, finished_trials(study))


@dataclass(slots=True)
class _Trials:
    study: "Study"
    file: SweepFile
    request: TrainRequest
    config: Config
    callbacks: SweepCallbacks
    argv: tuple[str, ...]
    _loop: TrainingLoop | None = field(default=None)
    _pruned: bool = False

    def run(self) -> str:
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)  # of a sweep that was killed
        while (done := len(finished_trials(self.study))) < self.file.sweep.trials:
            self.study.sampler = TPESampler(seed=self.request.seed * 1_000_003 + done, n_startup_trials=STARTUP_TRIALS)
            trial = self.study.ask()
            settings = {one.key: _draw(trial, one) for one in self.file.space}
            trial.set_user_attr("settings", settings)
            try:
                value, state = self._trial(trial, done + 1, settings), TrialState.COMPLETE
            except TrainingStopped as error:
                trial.set_user_attr("error", str(error))
                value, state = None, TrialState.FAIL
            except BaseException:
                self.study.tell(trial, state=TrialState.FAIL)
                raise
            if self._pruned and self._loop is not None:
                value, state = None, TrialState.PRUNED
                self._loop.stop_requested = False  # by the pruner, not by the user
            if self._loop is not None and self._loop.stop_requested:
                self.study.tell(trial, state=TrialState.FAIL)  # without an error: not counted, and drawn again
                return "stopped"
            self.study.tell(trial, value, state)
            self.callbacks.on_trial(finished_trials(self.study)[-1])
        return "done"

    def _trial(self, trial: "Trial", number: int, settings: dict[str, str]) -> float | None:
        """The mean over the seeds; None where a run was stopped."""
        values: list[float] = []
        runs: list[str] = []
        self._pruned = False
        for seed in range(self.file.sweep.seeds):
            reported: set[int] = set()

            def show(progress: TrainProgress, seed: int = seed, reported: set[int] = reported) -> None:
                self.callbacks.on_progress(number, seed + 1, progress)
                if seed == 0 and self.file.sweep.prune:
                    self._prune(trial, progress, reported)

            trained = self._run(seed, settings, show)
            runs.append(trained.run)
            trial.set_user_attr("runs", runs)
            if trained.state == "stopped":
                return None
            values.append(self._value(trained))
        return sum(values) / len(values)

    def _run(self, seed: int, settings: dict[str, str], show: Callable[[TrainProgress], None]) -> TrainResult:
        sweep, request = self.file.sweep, self.request
        texts = request.settings + tuple(f"{key}={text}" for key, text in settings.items())
        request = replace(request, seed=request.seed + seed, settings=texts, steps=sweep.steps or request.steps)
        until = None if sweep.objective == "return" else sweep.target
        options = TrainOptions(sweep.minutes or None, until, promote=False, argv=self.argv)
        return train(request, options, self.config, show, self._started)

    def _started(self, loop: TrainingLoop) -> None:
        loop.stop_requested = self._loop is not None and self._loop.stop_requested  # a signal between two runs
        self._loop = loop
        self.callbacks.on_run(loop)

    def _prune(self, trial: "Trial", progress: TrainProgress, reported: set[int]) -> None:
        """Once in each tenth of a run: ask Optuna whether the mean return is below the median of other trials."""
        tenth = int(progress.done_share * TENTHS)
        if progress.return_mean is None or tenth in reported or not 0 < tenth < TENTHS:
            return
        reported.add(tenth)
        trial.report(progress.return_mean if self.file.sweep.objective == "return" else -progress.return_mean, tenth)
        if trial.should_prune() and self._loop is not None and not self._loop.stop_requested:
            self._pruned = self._loop.stop_requested = True

    def _value(self, trained: TrainResult) -> float:
        sweep, published = self.file.sweep, trained.published
        if sweep.objective == "return":
            if published.evaluation is None:
                do = "Sweep a game that has a simulator here"
                raise TrainingStopped(published.verdict, where=f"run {trained.run}", do=do)
            return published.evaluation.mean
        took = float(trained.position) if sweep.objective == "steps" else trained.seconds
        late = trained.position >= trained.plan.steps or trained.seconds >= (sweep.minutes * 60 or float("inf"))
        return took * MISSED if late else took


def finished_trials(study: "Study") -> tuple[TrialReport, ...]:
    """The trials that count: an interrupted one, which failed without an error, does not."""
    reports = (_report(one) for one in study.get_trials(deepcopy=False) if one.state.is_finished())
    counted = (one for one in reports if one.state != "failed" or one.note)
    return tuple(replace(one, number=number) for number, one in enumerate(counted, 1))


def _report(one: "FrozenTrial") -> TrialReport:
    state = {"COMPLETE": "complete", "PRUNED": "pruned"}.get(one.state.name, "failed")
    attrs, value = one.user_attrs, one.value if state == "complete" else None
    settings, runs = attrs.get("settings", {}), tuple(attrs.get("runs", ()))
    return TrialReport(one.number, state, value, settings, runs, attrs.get("error", ""))


def _draw(trial: "Trial", one: SearchRange) -> str:
    """A value as TOML. Choices are drawn as texts: Optuna stores no lists."""
    if one.choices:
        return str(trial.suggest_categorical(one.key, one.choices))
    if one.whole:
        return str(trial.suggest_int(one.key, int(one.low), int(one.high), log=one.log))
    return repr(trial.suggest_float(one.key, one.low, one.high, log=one.log))


@contextmanager
def _study(folder: Path, file: SweepFile) -> "Iterator[Study]":
    """The sweep's study, for one process at a time."""
    try:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        do = "Install it: pip install 'sparring[train]'"
        raise Missing("the package optuna is not installed", where="--sweep", do=do) from None

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    with ExitStack() as stack:
        stack.enter_context(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("it is under way in another process", where=str(folder), do="Wait for it") from None
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{folder.absolute()}/study.db")
            stack.callback(storage.engine.dispose)
            stack.callback(storage.remove_session)
            yield optuna.create_study(
                storage=storage,
                study_name="sweep",
                direction="maximize" if file.sweep.objective == "return" else "minimize",
                pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS),
                load_if_exists=True,
            )
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            why = str(error.__cause__ or error).splitlines()[0]
            do = "Free space or repair the disk, then give the same command: finished trials are kept"
            raise StoreFailed(f"its study could not be written: {why}", where=str(folder), do=do) from error


def _check_same(study: "Study", file: SweepFile, request: TrainRequest, name: str) -> None:
    """ConfigError where the folder holds another sweep; only `trials` may grow."""
    same: dict[str, Any] = asdict(replace(file, sweep=replace(file.sweep, trials=1, name="")))
    text = json.dumps(same | {"request": asdict(request)}, sort_keys=True)
    if study.user_attrs.setdefault("about", text) != text:
        raise ConfigError(
            "it was begun with another game, algorithm, space or length of run",
            where=f"sweep {name}",
            do='Give the new one another name: [sweep] name = "…"',
        )
    study.set_user_attr("about", text)
