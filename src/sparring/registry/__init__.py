"""Models by content: published whole, fetched exactly, and one signed champion for each version of a game."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.errors import ConfigError, Missing

if TYPE_CHECKING:
    from sparring.registry.registry import Registry

BACKENDS = {"file": "sparring.registry.file:FileRegistry", "s3": "sparring.registry.s3.registry:S3Registry"}
NEEDS = {"s3": "aws"}  # the extra of a backend that needs one


def open_registry(url: str, *, champion_days: float = 7.0, rollout_share: float = 1.0) -> "Registry":
    """The registry at `url`: file:///folder or s3://bucket/prefix?endpoint=…&region=… (docs/models.md)."""
    scheme, sign, rest = url.partition("://")
    if not sign or scheme not in BACKENDS or not rest.strip("/"):
        raise ConfigError(f"url = {url!r}", where="[registry]", do=f"Use {' or '.join(f'{s}://…' for s in BACKENDS)}")
    module, name = BACKENDS[scheme].split(":")
    try:
        backend = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise Missing(
            f"registry.url needs {error.name}", where=f"{scheme}://…", do=f"pip install 'sparring[{NEEDS[scheme]}]'"
        ) from None
    opened: Registry = backend(
        _folder(rest) if scheme == "file" else url, champion_days=champion_days, rollout_share=rollout_share
    )
    return opened


def _folder(rest: str) -> Path:
    # Two leading slashes mean something else to POSIX, and a data folder brings its own.
    return Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)
