"""A sweep: trials of an algorithm's settings, each one or several real runs, drawn by Optuna. sweep.toml says how many
trials of what length, what they are judged by, and the space in which settings are drawn:

    [sweep]
    trials = 20
    steps = 50_000

    [space]
    learning_rate = { low = 1e-4, high = 1e-2, log = true }
    hidden_units = { choices = [[32], [64, 64]] }

    <data>/sweeps/<name>/study.db              the trials so far
                         sweep.png, sweep.svg  their results: the objective trial by trial, and against
                                               every setting that was drawn

Trials run in this process, in several (trial.py), or on Ray Tune (ray_tune.py); this process alone draws settings and
writes the study. One trial at a time: each sampler is seeded by the sweep's seed and the number of trials before, so a
sweep that was interrupted and resumed draws the same settings as an uninterrupted one.
"""

import fcntl
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sparring.config import Config
from sparring.durable import disk_errors
from sparring.errors import ConfigError, Missing, Refused, StoreFailed
from sparring.games.catalogue import is_registered
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import TrainRequest, assignments, plan
from sparring.learn.presets import preset_for
from sparring.learn.runs.train import TrainingLoop, TrainProgress
from sparring.learn.sweeps.sweep_file import SearchRange, SweepFile, read_sweep
from sparring.learn.sweeps.trial import Outcome, SweepConfig, TrialJob, run_trial
from sparring.processes.supervisor import ONE_THREAD, ChildProcess, Launch, ProcessLog, exit_reason

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

TENTHS = 10
LOOK_S = 0.05  # between two looks at the trials' processes
STARTUP_TRIALS = 5  # that are drawn at random and never pruned


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One finished trial."""

    number: int  # from 1, interrupted trials left out
    state: str  # "complete", "pruned" or "failed"
    value: float | None
    settings: dict[str, Any]
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
        return " ".join(f"--algo-set {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in settings.items())


@dataclass(frozen=True, slots=True)
class SweepCallbacks:
    """What a sweep calls while it runs."""

    on_progress: Callable[[int, int, TrainProgress], None]  # trial's number from 1, run of the trial from 1
    on_trial: Callable[[TrialReport], None]
    on_start: "Callable[[Sweep], object]" = lambda sweep: None  # before the first trial, so that a signal can stop it


def sweep(
    given: Path | Mapping[str, Any],
    request: TrainRequest,
    config: Config,
    callbacks: SweepCallbacks,
    argv: tuple[str, ...] = (),
    parallel: int | None = None,
) -> SweepResult:
    """Run the remaining trials of a sweep.toml, or of its tables, `parallel` at once. A sweep that is stopped keeps
    those that are finished.

    On ray:// they are trials of Ray Tune; otherwise processes of this machine, or one after another in this process.
    """
    algorithm = open_algorithm(request.algo)
    on = request.on or config.train.on
    if on.startswith("ray:"):
        request, config = replace(request, on=None), config.layered({"train.on": "local://"}, "--sweep", above=True)
    spec = plan(request, config).spec  # raises where no trial could run
    if len(spec.kinds) > 1:
        wrong, do = f"the seats of {request.game} are of several kinds, and a trial has one return", "Train by hand"
        raise ConfigError(wrong, where="sweep", do=do)
    fixed = dict(preset_for(request.game, algorithm.name, spec).settings) | assignments(request.settings)
    file = read_sweep(given, algorithm, fixed)
    if parallel is not None:
        file = replace(file, sweep=replace(file.sweep, parallel=parallel))
    if is_registered(request.game) and (on.startswith("ray:") or file.sweep.parallel > 1):
        do = "Leave out parallel and on, or give the environment as gym:module:ID"
        raise ConfigError(f"{request.game} was made in this process, and trials run in others", where="sweep", do=do)
    words = (request.game, request.algo, given.stem if isinstance(given, Path) else "sweep")
    name = file.sweep.name or "-".join(words)
    folder = Path(config.data) / "sweeps" / "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    with _study(folder, file) as study:
        _check_same(study, file, request, folder.name)
        under_way = Sweep(study, file, request, config, callbacks, argv)
        under_way.forget_interrupted()
        callbacks.on_start(under_way)
        at_once = min(file.sweep.trials, file.sweep.parallel or _default_parallel(file.sweep, request.game))
        if on.startswith("ray:") and under_way.left:
            from sparring.learn.sweeps.ray_tune import run_on_ray

            run_on_ray(under_way, on, file.sweep.parallel)
        elif at_once == 1:
            run_here(under_way)
        else:
            run_in_processes(under_way, at_once)
        under_way.forget_interrupted()
        return SweepResult(folder.name, folder, file, under_way.state, finished_trials(study))


def _default_parallel(sweep: SweepConfig, game: str) -> int:
    """One trial for each core. Seconds are measured alone, and a game made in this process is played in it."""
    if sweep.objective == "seconds" or is_registered(game):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class Sweep:
    """A sweep under way: it draws the settings of trials, decides which are pruned, and stores what became of them."""

    study: "Study"
    file: SweepFile
    request: TrainRequest
    config: Config
    callbacks: SweepCallbacks
    argv: tuple[str, ...] = ()
    stop_requested: bool = False  # no further trial is begun, and those that run are stopped
    stop_now: Callable[[], object] = lambda: None  # stops those that run
    _reported: dict[int, set[int]] = field(default_factory=dict)  # tenths of a trial that Optuna knows

    def on_signal(self, number: int, frame: object) -> None:
        """A signal handler: the first signal stops the trials in good order, a second one at once."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True
        self.stop_now()

    @property
    def left(self) -> int:
        """Trials that are still to be begun."""
        return 0 if self.stop_requested else max(0, self.file.sweep.trials - len(_numbers(self.study)))

    @property
    def state(self) -> str:
        return "done" if len(finished_trials(self.study)) >= self.file.sweep.trials else "stopped"

    def forget_interrupted(self) -> None:
        """Trials of a sweep that was killed or stopped do not count: they failed, without an error."""
        from optuna.trial import TrialState

        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)

    def ask(self) -> "tuple[Trial, TrialJob]":
        """The next trial: its sampler is seeded by the sweep's seed and the number of trials before it."""
        from optuna.samplers import TPESampler

        seed = self.request.seed * 1_000_003 + len(_numbers(self.study))
        self.study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True)
        trial = self.study.ask()
        settings = {one.key: _draw(trial, one) for one in self.file.space}
        trial.set_user_attr("settings", settings)
        texts = self.request.settings + tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
        return trial, TrialJob(self.file.sweep, replace(self.request, settings=texts), self.config, self.argv)

    def prune(self, trial: "Trial", run: int, progress: TrainProgress) -> bool:
        """Show a trial's progress. Once in each tenth of its first run: whether its mean return is below the median of
        the other trials, by Optuna."""
        self.callbacks.on_progress(_numbers(self.study)[trial.number], run, progress)
        tenth, reported = int(progress.done_share * TENTHS), self._reported.setdefault(trial.number, set())
        mean, wanted = progress.return_mean, self.file.sweep.prune and run == 1
        if mean is None or not wanted or tenth in reported or not 0 < tenth < TENTHS:
            return False
        reported.add(tenth)
        trial.report(mean if self.file.sweep.objective == "return" else -mean, tenth)
        return trial.should_prune()

    def tell(self, trial: "Trial", outcome: Outcome) -> None:
        """What became of the trial."""
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        trial.set_user_attr("runs", outcome.runs)
        if outcome.error:
            trial.set_user_attr("error", outcome.error)
        self.study.tell(trial, outcome.value, states.get(outcome.state, TrialState.FAIL))
        number = _numbers(self.study).get(trial.number)
        if number is not None:
            self.callbacks.on_trial(next(one for one in finished_trials(self.study) if one.number == number))


def run_here(sweep: Sweep) -> None:
    """One trial after another, in this process."""
    while sweep.left:
        trial, job = sweep.ask()

        def started(loop: TrainingLoop) -> None:
            loop.stop_requested = sweep.stop_requested  # a signal between two runs
            sweep.stop_now = lambda: setattr(loop, "stop_requested", True)

        sweep.tell(trial, run_trial(job, partial(sweep.prune, trial), started))


def run_in_processes(sweep: Sweep, at_once: int) -> None:
    """Trials as processes of this machine. One that is killed is a failed trial, and the others go on."""
    running: list[_TrialProcess] = []

    def stop() -> None:
        for one in running:
            one.process.stop()

    sweep.stop_now = stop
    try:
        while running or sweep.left:
            while sweep.left and len(running) < at_once:
                running.append(_TrialProcess(sweep, *sweep.ask()))
            for one in running[:]:
                if one.look():
                    running.remove(one)
            time.sleep(LOOK_S)
    finally:
        for one in running:  # after an error, or a second Ctrl-C
            one.process.close()


class _TrialProcess:
    """A trial in a process of its own."""

    def __init__(self, sweep: Sweep, trial: "Trial", job: TrialJob) -> None:
        self._sweep, self._trial, self._log = sweep, trial, ProcessLog()
        message = f"{job.encode()}\n".encode()
        launch = Launch(["sparring.learn.sweeps.trial"], message, environment=ONE_THREAD, answers=True)
        self.process = ChildProcess(launch, self._log.file)
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        os.set_blocking(self._stdout, False)
        self._rest, self._pruned = b"", False
        self._outcome: Outcome | None = None

    def look(self) -> bool:
        """Read what it says; whether it has ended, and the sweep was told so."""
        self.process.send()
        code = self.process.exit_code()  # before the last lines are read
        with suppress(BlockingIOError):
            while said := os.read(self._stdout, 1 << 16):
                *lines, self._rest = (self._rest + said).split(b"\n")
                for line in lines:
                    self._read(line)
        if code is None:
            return False
        why = f"its process ended with {exit_reason(code)}: {self._log.last_lines()}"
        outcome = self._outcome or Outcome("failed", error=why)
        if outcome.state != "complete" and self._sweep.stop_requested:
            outcome = Outcome("stopped", runs=outcome.runs)
        elif outcome.state == "stopped":
            outcome = Outcome("pruned", runs=outcome.runs) if self._pruned else Outcome("failed", error=why)
        self.process.close()
        self._log.close()
        self._sweep.tell(self._trial, outcome)
        return True

    def _read(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return  # a library's own words
        if "outcome" in said:
            self._outcome = msgspec.convert(said["outcome"], Outcome)
        elif "progress" in said:
            run = said["progress"].pop("run")
            if self._sweep.prune(self._trial, run, TrainProgress(**said["progress"])) and not self._pruned:
                self._pruned = True
                self.process.stop()


def _numbers(study: "Study") -> dict[int, int]:
    """Optuna's number of every trial that counts → ours, from 1. An interrupted one, which failed without an error,
    does not count."""
    every = study.get_trials(deepcopy=False)
    counted = [one.number for one in every if one.state.name not in ("FAIL", "WAITING") or one.user_attrs.get("error")]
    return {number: place for place, number in enumerate(sorted(counted), 1)}


def finished_trials(study: "Study") -> tuple[TrialReport, ...]:
    """The trials that count and have ended."""
    numbers = _numbers(study)
    ended = (one for one in study.get_trials(deepcopy=False) if one.number in numbers and one.state.is_finished())
    return tuple(_report(one, numbers[one.number]) for one in ended)


def _report(one: "FrozenTrial", number: int) -> TrialReport:
    state = {"COMPLETE": "complete", "PRUNED": "pruned"}.get(one.state.name, "failed")
    attrs, value = one.user_attrs, one.value if state == "complete" else None
    return TrialReport(number, state, value, attrs["settings"], tuple(attrs.get("runs", ())), attrs.get("error", ""))


def _draw(trial: "Trial", one: SearchRange) -> Any:
    """A value. Choices are drawn as texts: Optuna stores no lists."""
    if one.choices:
        return json.loads(trial.suggest_categorical(one.key, one.choices))
    if one.whole:
        return trial.suggest_int(one.key, int(one.low), int(one.high), log=one.log)
    return trial.suggest_float(one.key, one.low, one.high, log=one.log)


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
    same: dict[str, Any] = asdict(replace(file, sweep=replace(file.sweep, trials=1, name="", parallel=0)))
    text = json.dumps(same | {"request": asdict(request)}, sort_keys=True)
    if study.user_attrs.setdefault("about", text) != text:
        raise ConfigError(
            "it was begun with another game, algorithm, space or length of run",
            where=f"sweep {name}",
            do='Give the new one another name: [sweep] name = "…"',
        )
    study.set_user_attr("about", text)
