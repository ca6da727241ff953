"""Ray's own commands, run with our ground under them: up, submit, down. Their output passes through as it comes."""

import importlib
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError, Missing
from sparring.hosts.cluster.ray_yaml import DATA, ENVIRONMENT, FOLDER

HEAD_POLICY, USER_POLICY = "-head-policy.json", "-user-policy.json"  # beside cluster.yaml: cluster-head-policy.json
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster's file, as far as we need it."""

    path: Path
    name: str
    region: str
    ssh_from: str
    private: bool
    subnets: tuple[str, ...]
    folder: bool  # whether one of the user's was copied to the nodes

    @property
    def head_policy(self) -> Path:
        return beside(self.path, HEAD_POLICY)


def beside(path: Path, ending: str) -> Path:
    """The policy's file that belongs to a cluster's."""
    return path.with_name(path.stem + ending)


def read(path: Path) -> ClusterFile:
    """The file of a cluster, or a sentence about what is wrong with it."""
    if not path.is_file():
        do = "Run `spar cluster yaml` first, or name the file with --file"
        raise Missing("there is no such file", where=str(path), do=do)
    yaml = importlib.import_module("yaml")
    try:
        table: Any = yaml.safe_load(path.read_text())
        node = table["available_node_types"][table["head_node_type"]]["node_config"]
        return ClusterFile(
            path=path,
            name=str(table["cluster_name"]),
            region=str(table["provider"]["region"]),
            ssh_from=str(table["metadata"]["ssh_from"]),
            private=bool(table["provider"].get("use_internal_ips", False)),
            subnets=tuple(node.get("SubnetIds", ())),
            folder=FOLDER in table.get("file_mounts", {}),
        )
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        wrong = f"it is no cluster of ours: {type(error).__name__}: {error}".replace("\n", " ")
        raise ConfigError(wrong, where=str(path), do="Write it again with `spar cluster yaml`") from None


def policy_of(cluster: ClusterFile) -> dict[str, Any]:
    """The head's policy as it stands beside the file: a bucket that is added to it is the head's too."""
    if not cluster.head_policy.is_file():
        do = "Write it again with `spar cluster yaml`, or give the head's policy back its place"
        raise Missing("there is no such file", where=str(cluster.head_policy), do=do)
    try:
        policy: dict[str, Any] = json.loads(cluster.head_policy.read_text())
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}", where=str(cluster.head_policy), do="Mend that line") from None
    return policy


def up(cluster: ClusterFile, say: Say) -> int:
    """Start the cluster, or bring a running one to its file. Ray's exit code."""
    # Ray remembers what it once found in the account; what was removed since would be asked for again.
    return _ray(["up", "-y", "--no-config-cache", "--disable-usage-stats", str(cluster.path)], say)


def submit(cluster: ClusterFile, words: list[str], wait: bool, say: Say) -> int:
    """Run `spar …` on the head as a job of Ray: it goes on when the connection does not. The job's exit code."""
    job = ["job", "submit", "--address", "http://127.0.0.1:8265", *([] if wait else ["--no-wait"])]
    place = f"env -C {FOLDER} PYTHONPATH={FOLDER} " if cluster.folder else ""
    spar = shlex.join(on_the_head(words)).replace(shlex.quote(DATA), DATA)  # the head's shell opens ~
    line = f"{ENVIRONMENT}/bin/ray {shlex.join(job)} -- {place}{ENVIRONMENT}/bin/{spar}"
    return _ray(["exec", "--disable-usage-stats", str(cluster.path), line], say)


def on_the_head(words: list[str]) -> list[str]:
    """`spar` with these words, as it should run on the head: on the cluster, and with its data where `down` looks."""
    if not words:
        do = "Write what to run after --, such as `spar cluster submit -- train cartpole --algo apex`"
        raise ConfigError("nothing to run", where="spar cluster submit", do=do)
    where = ["--on", "ray://auto"] if words[0] == "train" and not _has(words, "--on") else []
    data = [] if _has(words, "--data") else ["--data", DATA]
    return ["spar", *words, *where, *data]


def _has(words: list[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def fetch(cluster: ClusterFile, folder: Path, say: Say) -> int:
    """Copy the head's data folder here; what it learned ends with its disk."""
    folder.mkdir(parents=True, exist_ok=True)
    return _ray(["rsync-down", str(cluster.path), f"{DATA}/", f"{folder}/"], say)


def down(cluster: ClusterFile, say: Say) -> int:
    """Terminate every node. Ray's exit code."""
    return _ray(["down", "-y", str(cluster.path)], say)


def _ray(words: list[str], say: Say) -> int:
    if importlib.util.find_spec("ray") is None:
        raise Missing(
            "the package 'ray' is not installed", where="spar cluster", do="Run pip install 'sparring[ray,aws]'"
        )
    say(f"$ ray {shlex.join(words)}")
    # This interpreter's Ray, whatever `ray` is on the PATH: its version is the one that the file pins.
    program = [sys.executable, "-m", "ray.scripts.scripts", *words]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ray:
        try:
            for line in ray.stdout or ():
                say(line.rstrip("\n"))
        except KeyboardInterrupt:
            ray.terminate()
            raise
    return ray.returncode
