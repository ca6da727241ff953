"""A sweep's trials as trials of Ray Tune: Tune places them on a cluster's nodes and runs them; the sweep's study, in
this process, draws their settings and decides which are pruned (StudySearch).

    trial ─ tune.report: progress …, outcome ─► StudySearch ─ its id, where it is to end ─► StopRequests ◄─ asks ─ trial

A trial that is pruned or stopped ends as it does on one machine: it writes its checkpoint, publishes its model and
reports its outcome. One whose process is lost has failed, and the others go on.

A trial's runs are written to the data folder on its node: let all nodes share it, or look at the trials' values alone.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher

from sparring.hosts.ray.cluster import Cluster
from sparring.learn.runs.train import TrainProgress
from sparring.learn.sweeps.sweep import Sweep
from sparring.learn.sweeps.trial import Outcome, TrialJob, run_trial

if TYPE_CHECKING:
    from optuna import Trial

CPUS_PER_TRIAL = 1.0
_TUNE = {  # read when it runs: signals reach the sweep, and no files of its own are written
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}
_OUTCOME, _PROGRESS = "outcome", "progress"


def run_on_ray(sweep: Sweep, url: str, parallel: int) -> None:
    """Run the sweep's remaining trials on the cluster at `url`, `parallel` at once; 0: as many as it has CPUs for."""
    os.environ.update(_TUNE)
    with ExitStack() as stack:
        stack.callback(Cluster(url).close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparring-tune-"))
        requests = stop_requests()
        search = StudySearch(sweep, requests)
        tune.run(
            tune.with_parameters(_run, requests=requests),
            name="sweep",
            search_alg=ConcurrencyLimiter(search, parallel) if parallel else search,
            num_samples=sweep.left,
            stop=lambda trial_id, result: search.is_over(trial_id, result),
            resources_per_trial={"cpu": CPUS_PER_TRIAL},
            storage_path=folder,
            raise_on_failed_trial=False,
            verbose=0,
        )


def stop_requests() -> Any:
    """A Ray actor: the trials that are to end. Its class is sent with it, so its process imports nothing of ours."""

    class StopRequests:
        def __init__(self) -> None:
            self.trials: set[str] = set()

        def add(self, trial_id: str) -> None:
            self.trials.add(trial_id)

        def has(self, trial_id: str) -> bool:
            return trial_id in self.trials

    return ray.remote(num_cpus=0)(StopRequests).remote()


def _run(config: dict[str, Any], requests: Any) -> None:
    """One trial, in a process of Ray."""
    job, trial_id = TrialJob.decode(config["job"]), tune.get_context().get_trial_id()

    def report(run: int, progress: TrainProgress) -> bool:
        tune.report({_PROGRESS: asdict(progress), "run": run})  # returns after StudySearch has seen it
        return bool(ray.get(requests.has.remote(trial_id)))

    tune.report({_OUTCOME: asdict(run_trial(job, report))})


class StudySearch(Searcher):
    """Draws from the sweep's study what Tune tries, and tells it what became of that."""

    def __init__(self, sweep: Sweep, requests: Any) -> None:
        super().__init__(metric="training_iteration", mode="max")  # Tune ranks nothing: the study does
        self._sweep, self._requests = sweep, requests
        self.trials: dict[str, Trial] = {}  # that run, by Tune's ids
        self._outcomes: dict[str, Outcome] = {}

    def suggest(self, trial_id: str) -> Any:
        """The job of a new trial."""
        if not self._sweep.left:
            return Searcher.FINISHED
        self.trials[trial_id], job = self._sweep.ask()
        return {"job": job.encode()}

    def is_over(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Tune's stopper, asked with every report: whether it is the last. One that is pruned, or runs while the sweep
        is stopped, is asked to end."""
        if _OUTCOME in result:
            outcome = msgspec.convert(result[_OUTCOME], Outcome)
            unfinished = self._sweep.stop_requested and outcome.state != "complete"
            self._outcomes[trial_id] = replace(outcome, state="stopped") if unfinished else outcome
            return True
        pruned = self._sweep.prune(self.trials[trial_id], result["run"], TrainProgress(**result[_PROGRESS]))
        if pruned or self._sweep.stop_requested:
            ray.get(self._requests.add.remote(trial_id))
        return False

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the study; a trial whose process was lost has failed, unless the sweep was stopped."""
        trial = self.trials.pop(trial_id, None)
        if trial is not None:
            lost = Outcome("stopped") if self._sweep.stop_requested else Outcome("failed", error="its process was lost")
            self._sweep.tell(trial, self._outcomes.get(trial_id, lost))

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep that goes on reads its study."""
