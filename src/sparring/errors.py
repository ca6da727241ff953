"""Every error that a person may meet, as one tree.

SparringError
├── ConfigError          a key or value of spar.toml, --set or a flag
├── Missing              a thing that was named is not there: game, model, run, episode, package
├── Refused              a request that will never be granted as it is
│   ├── ChunkRefused     a chunk that breaks its game's spec; says field, value, limit
│   ├── Conflict         the same key with other content; the first stays
│   ├── NotYours         another uploader opened this seat, or the key lacks the scope
│   └── Gone             the player was erased
├── WireError            bytes that are not what they claim to be
├── ModelDamaged         a model, manifest or signature that does not verify
├── Unreachable          a server did not answer; try again later
├── StoreFailed          the disk or database would not keep what was given
│   └── StoreRefused     it answers, and will not take this one thing as it is
├── TrainingStopped      a run that cannot go on: NaN, starved, or a checkpoint that does not fit
└── UserCodeError        what the user's own network, algorithm, policy or game raised; says their file and line
"""

from collections.abc import Callable
from typing import Any


class SparringError(Exception):
    """Says what was wrong, where, and what to do about it."""

    story = ""  # of one that came from another process: its traceback there, as text

    def __init__(self, wrong: str, *, where: str, do: str) -> None:
        end = "?" if do.startswith("Did you mean") else "."
        super().__init__(f"{where}: {wrong}. {do}{end}")
        self.wrong, self.where, self.do = wrong, where, do

    def reword(self, change: Callable[[str], str]) -> None:
        """Say it in other words."""
        SparringError.__init__(self, change(self.wrong), where=change(self.where), do=change(self.do))


class ConfigError(SparringError):
    """A key or value of spar.toml, --set or a flag."""


class Missing(SparringError):
    """A thing that was named is not there."""


class WireError(SparringError):
    """Bytes that are not what they claim to be."""


class ModelDamaged(SparringError):
    """A model, manifest or signature that does not verify."""


class Unreachable(SparringError):
    """A server did not answer; the same call may succeed later."""


class StoreFailed(SparringError):
    """The disk or database would not keep what was given."""


class StoreRefused(StoreFailed):
    """The store answers, and will not take what it was given: too large for it, or no value of its columns."""


class TrainingStopped(SparringError):
    """A run that cannot go on."""


class UserCodeError(SparringError):
    """What the user's own code raised (user_code.py); `story` is the traceback from their first line on."""


class Refused(SparringError):
    """A request that will never be granted as it is. `code` is stable and machine-readable."""

    code = "refused"
    status = 422

    def __init__(
        self, wrong: str, *, where: str, do: str, field: str = "", value: Any = None, limit: Any = None
    ) -> None:
        super().__init__(wrong, where=where, do=do)
        self.field, self.value, self.limit = field, value, limit


class ChunkRefused(Refused):
    """A chunk that breaks its game's spec."""

    code = "chunk"


class Conflict(Refused):
    """The same key with other content, or steps that overlap what is stored; the first stays."""

    code = "conflict"
    status = 409


class NotYours(Refused):
    """Another uploader opened this seat, or the caller's key lacks the scope."""

    code = "forbidden"
    status = 403


class Gone(Refused):
    """The player was erased; nothing more is kept of them."""

    code = "gone"
    status = 410


EXTRAS = {  # extra → packages that it brings
    "serve": ("starlette", "uvicorn", "websockets", "prometheus_client", "rich", "openskill"),
    "train": ("torch", "safetensors", "onnx", "matplotlib", "numba", "optuna"),
    "games": ("gymnasium", "pettingzoo", "mpe2", "pyspiel", "ale_py"),
    "services": ("zmq",),
    "ray": ("ray", "yaml"),
    "export": ("pyarrow", "minari"),
    "aws": ("boto3", "botocore"),
    "cassandra": ("cassandra",),
    "redis": ("redis",),
    "spark": ("pyspark",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "video": ("imageio", "imageio_ffmpeg"),
}


def missing_package(error: ModuleNotFoundError) -> Missing | None:
    """What to install for a module that is not there; None where it is our own."""
    package = (error.name or "").partition(".")[0]
    if package in ("sparring", ""):
        return None
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    what = f"sparring[{extra}]" if extra else package
    return Missing(
        f"the package {package!r} is not installed", where="this installation", do=f"Run pip install '{what}'"
    )
