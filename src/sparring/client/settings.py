"""The settings of `connect` beside address, game and player; each default suits most games."""

import difflib
import os
import re
import sys
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypedDict

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec


class SettingsKeys(TypedDict, total=False):
    """The keyword arguments of `connect`, for type checkers; meaning and defaults stand in `Settings`."""

    token: str | None
    trust: str | None
    strength: float | None
    style: str | None
    act: Literal["local", "server"]
    spec: GameSpec | str | Path | None
    folder: str | Path | None
    ca: str | Path | None
    gateway: str | None
    seed: int | None
    flush_every_s: float
    memory_bytes: int
    spool_bytes: int
    poll_every_s: float
    wait_for_model_s: float
    retry_most_s: float
    timeout_s: float
    act_timeout_s: float
    close_timeout_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """One line each in docs/client.md."""

    token: str | None = None  # an API key or a player token; never logged, never written to disk
    trust: str | None = None  # "ed25519:…" or "ed25519:…@COUNTER", as spar prints it; None pins the first key seen
    strength: float | None = None  # 1 is the model at its best, 0 a random action; None is 1
    style: str | None = None  # a name of `spar models strengths GAME`: how it plays; None is any way
    act: Literal["local", "server"] = "local"  # where the model runs
    spec: GameSpec | str | Path | None = None  # the game's spec, or its TOML file; None asks catalogue, then gateway
    folder: str | Path | None = None  # spool, models and pins; None is the user's data folder
    ca: str | Path | None = None  # PEM file of the authority that signed the gateway's certificate
    gateway: str | None = None  # of connect("kinesis://…"): the gateway that models come from; None: no models
    seed: int | None = None  # of act()'s random numbers; None draws one
    flush_every_s: float = 3.0  # what a running episode has recorded is sent this often
    memory_bytes: int = 64 << 20  # of steps not yet on disk; beyond it the rest of an episode is dropped
    spool_bytes: int = 256 << 20  # on disk; beyond it the oldest whole episodes are dropped
    poll_every_s: float = 60.0  # a new champion is looked for this often, give or take a fifth
    wait_for_model_s: float = 0.0  # connect() waits at most this long for the first champion; 0: it does not
    retry_most_s: float = 30.0  # the longest pause between two tries of an upload
    timeout_s: float = 10.0  # of one request in the background
    act_timeout_s: float = 1.0  # of one act="server" request, for which the game waits
    close_timeout_s: float = 5.0  # close() waits this long for the last uploads; the rest stays spooled

    def __post_init__(self) -> None:
        if self.act not in ("local", "server"):
            raise _wrong(f"act={self.act!r}", 'Use "local" or "server"')
        if self.strength is not None and not (_is_number(self.strength) and 0.0 <= self.strength <= 1.0):
            raise _wrong(f"strength={self.strength!r}", "Give a number from 0 (chance) to 1 (at its best)")
        if not isinstance(self.style, str | None):
            raise _wrong(f"style={self.style!r}", "Give a name that `spar models strengths GAME` shows")
        if self.trust is not None and not re.fullmatch(r"ed25519:[^@]*(@[0-9]{1,18})?", self.trust):
            do = (
                'Give the "ed25519:…" line that `spar serve` prints, or the one with a counter of `spar models promote`'
            )
            raise _wrong(f"trust={self.trust!r}", do)
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "wait_for_model_s" and value == 0:
                continue
            if item.name.endswith(("_s", "_bytes")) and not (_is_number(value) and value > 0):
                raise _wrong(f"{item.name}={value!r}", "Give a number above 0")

    @property
    def root(self) -> Path:
        return Path(self.folder) if self.folder is not None else data_folder()


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings, or a ConfigError that names the unknown one and the nearest known."""
    known = [item.name for item in fields(Settings)]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise _wrong(
                f"unknown argument {key!r}", f"Did you mean {near[0]!r}" if near else f"Use {', '.join(known)}"
            )
    return Settings(**given)


def data_folder() -> Path:
    """Where this operating system keeps a user's application data; the one place that asks the environment."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "sparring"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "sparring"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sparring"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)  # NumPy's are, too


def _wrong(text: str, do: str) -> ConfigError:
    return ConfigError(text, where="sparring.connect", do=do)
