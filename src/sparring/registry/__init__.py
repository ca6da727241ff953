"""Models by content: published whole, fetched exactly, and one signed champion for each version of a game."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.registry.protocol import Registry

BACKENDS = {"file": "sparring.registry.file:FileRegistry"}


def open_registry(url: str, *, champion_days: float = 7.0, rollout_share: float = 1.0) -> "Registry":
    """The registry at `url`: file:///folder."""
    scheme, sign, rest = url.partition("://")
    if not sign or scheme not in BACKENDS or not rest.strip("/"):
        raise ConfigError(f"url = {url!r}", where="[registry]", do=f"Use {' or '.join(f'{s}://…' for s in BACKENDS)}")
    # Two leading slashes mean something else to POSIX, and a data folder brings its own.
    path = Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)
    module, name = BACKENDS[scheme].split(":")
    opened: Registry = getattr(import_module(module), name)(
        path, champion_days=champion_days, rollout_share=rollout_share
    )
    return opened
