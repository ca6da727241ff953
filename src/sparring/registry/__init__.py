"""Models by content: published whole, fetched exactly, and one signed champion for each version of a game."""

from functools import partial
from pathlib import Path

from sparring.errors import ConfigError
from sparring.registry.protocol import Objects
from sparring.registry.registry import Registry, model_in
from sparring.urls import backend

__all__ = ["model_in", "open_objects", "open_registry"]
BACKENDS = {"file": "sparring.registry.file", "s3": "sparring.registry.s3.registry"}


def open_registry(url: str, *, champion_days: float = 7.0, rollout_share: float = 1.0) -> Registry:
    """The registry at `url`: file:///folder or s3://bucket/prefix?endpoint=…&region=… (docs/models.md)."""
    scheme, sign, rest = url.partition("://")
    if not sign or scheme not in BACKENDS or not rest.strip("/"):
        raise ConfigError(f"url = {url!r}", where="[registry]", do=f"Use {' or '.join(f'{s}://…' for s in BACKENDS)}")
    module = backend(url, BACKENDS, "registry", "[registry] url", extra="aws")
    make = partial(module.FileRegistry, _folder(rest)) if scheme == "file" else partial(module.S3Registry, url)
    opened: Registry = make(champion_days=champion_days, rollout_share=rollout_share)
    return opened


def open_objects(url: str, setting: str, mode: int = 0o644) -> Objects:
    """The objects at file:///folder or s3://bucket/prefix; files there are made with that mode."""
    module = backend(
        url, {"file": "sparring.registry.file", "s3": "sparring.registry.s3.bucket"}, "folder", setting, "aws"
    )
    if url.startswith("file:"):
        made: Objects = module.Folder(_folder(url.removeprefix("file://")), mode)
        return made
    bucket: Objects = module.Bucket(module.Address.read(url, setting))
    return bucket


def _folder(rest: str) -> Path:
    # Two leading slashes mean something else to POSIX, and a data folder brings its own.
    return Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)
