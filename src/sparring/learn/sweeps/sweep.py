"""A sweep: trials of an algorithm's settings, each of them real runs, drawn by Optuna and kept in its own folder.

    <data>/sweeps/<name>/study.db              the trials so far
                         sweep.png, sweep.svg  what they came to

Every trial's sampler is seeded by the sweep's seed and the number of trials done: a sweep that was broken off
and taken up again draws what an unbroken one does.
"""

import fcntl
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.config import Config
from sparring.durable import disk_errors
from sparring.errors import ConfigError, Missing, Refused, StoreFailed, TrainingStopped
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import TrainRequest, assignments, plan
from sparring.learn.presets import preset_for
from sparring.learn.runs.session import Progress, Session
from sparring.learn.runs.train import TrainOptions, TrainResult, train
from sparring.learn.sweeps.space import Range, SweepFile, read_sweep

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

TENTHS = 10
MISSED = 2.0  # a run that did not reach the target counts as so many times what it took
STARTUP_TRIALS = 5  # that are drawn freely and never pruned


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One trial as it came out."""

    number: int  # from 1, among those that count
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
        whole = [one for one in self.trials if one.state == "complete" and one.value is not None]
        sign = 1 if self.file.sweep.objective == "return" else -1
        return max(whole, key=lambda one: sign * (one.value or 0.0), default=None)

    @property
    def flags(self) -> str:
        """The best settings for `spar train`."""
        settings = {} if self.best is None else self.best.settings
        return " ".join(f"--algo-set {shlex.quote(f'{key}={text}')}" for key, text in settings.items())


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who follows a sweep."""

    show: Callable[[int, int, Progress], None]  # trial's number from 1, run of the trial from 1
    told: Callable[[TrialReport], None]
    begun: Callable[[Session], None] = lambda session: None  # so that a signal can stop it


def sweep(path: Path, wish: TrainRequest, config: Config, watcher: Watcher, argv: tuple[str, ...] = ()) -> SweepResult:
    """Run what is left of the sweep's trials; one Ctrl-C keeps those that are done."""
    algorithm = open_algorithm(wish.algo)
    plan(wish, config)  # refuses what no trial could do
    known = dict(preset_for(wish.game, algorithm.name).settings) | assignments(wish.settings)
    file = read_sweep(path, algorithm, known)
    name = file.sweep.name or f"{wish.game}-{wish.algo}-{path.stem}"
    folder = Path(config.data) / "sweeps" / "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    with _study(folder, file) as study:
        _same(study, file, wish, folder.name)
        state = _Trials(study, file, wish, config, watcher, argv).run()
        return SweepResult(folder.name, folder, file, state, told(study))


@dataclass(slots=True)
class _Trials:
    study: "Study"
    file: SweepFile
    wish: TrainRequest
    config: Config
    watcher: Watcher
    argv: tuple[str, ...]
    _session: Session | None = field(default=None)
    _pruned: bool = False

    def run(self) -> str:
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)  # of a sitting that was killed
        while (done := len(told(self.study))) < self.file.sweep.trials:
            self.study.sampler = TPESampler(seed=self.wish.seed * 1_000_003 + done, n_startup_trials=STARTUP_TRIALS)
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
            if self._pruned and self._session is not None:
                value, state = None, TrialState.PRUNED
                self._session.stop_asked = False  # it was we who asked
            if self._session is not None and self._session.stop_asked:
                self.study.tell(trial, state=TrialState.FAIL)  # and not counted: it will be drawn again
                return "stopped"
            self.study.tell(trial, value, state)
            self.watcher.told(told(self.study)[-1])
        return "done"

    def _trial(self, trial: "Trial", number: int, settings: dict[str, str]) -> float | None:
        """The mean over the seeds; None where it was cut short."""
        values: list[float] = []
        runs: list[str] = []
        self._pruned = False
        for seed in range(self.file.sweep.seeds):
            seen: set[int] = set()

            def show(progress: Progress, seed: int = seed, seen: set[int] = seen) -> None:
                self.watcher.show(number, seed + 1, progress)
                if seed == 0 and self.file.sweep.prune:
                    self._look(trial, progress, seen)

            trained = self._run(seed, settings, show)
            runs.append(trained.run)
            trial.set_user_attr("runs", runs)
            if trained.state == "stopped":
                return None
            values.append(self._value(trained))
        return sum(values) / len(values)

    def _run(self, seed: int, settings: dict[str, str], show: Callable[[Progress], None]) -> TrainResult:
        said, wish = self.file.sweep, self.wish
        texts = tuple(f"{key}={text}" for key, text in settings.items())
        wish = replace(wish, seed=wish.seed + seed, settings=wish.settings + texts, steps=said.steps or wish.steps)
        until = None if said.objective == "return" else said.target
        orders = TrainOptions(said.minutes or None, until, promote=False, argv=self.argv)
        return train(wish, orders, self.config, show, self._begun)

    def _begun(self, session: Session) -> None:
        session.stop_asked = self._session is not None and self._session.stop_asked  # a signal between two runs
        self._session = session
        self.watcher.begun(session)

    def _look(self, trial: "Trial", progress: Progress, seen: set[int]) -> None:
        """Once in each tenth: by the same measure in every trial, whatever its objective."""
        tenth = int(progress.done_share * TENTHS)
        if progress.return_mean is None or tenth in seen or not 0 < tenth < TENTHS:
            return
        seen.add(tenth)
        trial.report(progress.return_mean if self.file.sweep.objective == "return" else -progress.return_mean, tenth)
        if trial.should_prune() and self._session is not None and not self._session.stop_asked:
            self._pruned = self._session.stop_asked = True

    def _value(self, trained: TrainResult) -> float:
        said = self.file.sweep
        if said.objective == "return":
            if trained.published.evaluation is None:
                raise TrainingStopped(
                    trained.published.verdict, where=f"run {trained.run}", do="Sweep a game that has a simulator here"
                )
            return trained.published.evaluation.mean
        took = float(trained.position) if said.objective == "steps" else trained.seconds
        late = trained.position >= trained.plan.steps or trained.seconds >= (said.minutes * 60 or float("inf"))
        return took * MISSED if late else took


def told(study: "Study") -> tuple[TrialReport, ...]:
    """The trials that count: not those that were broken off."""
    kept_trials = (_told(one) for one in study.get_trials(deepcopy=False) if one.state.is_finished())
    counted = (one for one in kept_trials if one.state != "failed" or one.note)
    return tuple(replace(one, number=number) for number, one in enumerate(counted, 1))


def _told(one: "FrozenTrial") -> TrialReport:
    state = {"COMPLETE": "complete", "PRUNED": "pruned"}.get(one.state.name, "failed")
    attrs = one.user_attrs
    value = one.value if state == "complete" else None
    runs = tuple(attrs.get("runs", ()))
    return TrialReport(one.number, state, value, attrs.get("settings", {}), runs, attrs.get("error", ""))


def _draw(trial: "Trial", one: Range) -> str:
    """A value as TOML. Choices are drawn as texts: Optuna keeps no lists."""
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
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("it is under way in another process", where=str(folder), do="Wait for it") from None
        try:
            with _storage(folder) as storage:
                yield optuna.create_study(
                    storage=storage,
                    study_name="sweep",
                    direction="maximize" if file.sweep.objective == "return" else "minimize",
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS),
                    load_if_exists=True,
                )
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            why = str(error.__cause__ or error).splitlines()[0]
            do = "Free space or mend the disk, then give the same command: trials that were told are kept"
            raise StoreFailed(f"its study could not be kept: {why}", where=str(folder), do=do) from error


@contextmanager
def _storage(folder: Path) -> "Iterator[RDBStorage]":
    from optuna.storages import RDBStorage

    storage = RDBStorage(f"sqlite:///{folder.absolute()}/study.db")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _same(study: "Study", file: SweepFile, wish: TrainRequest, name: str) -> None:
    """ConfigError where the folder holds a sweep of something else; only `trials` may grow."""
    about: dict[str, Any] = asdict(replace(file, sweep=replace(file.sweep, trials=1, name=""))) | {"wish": asdict(wish)}
    text = json.dumps(about, sort_keys=True)
    if study.user_attrs.setdefault("about", text) != text:
        raise ConfigError(
            "it was begun with another game, algorithm, space or length of run",
            where=f"sweep {name}",
            do='Give the new one another name: [sweep] name = "…"',
        )
    study.set_user_attr("about", text)
