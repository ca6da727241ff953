"""What speaks as AWS does on the loopback: S3 by versitygw, Kinesis by kinesalite or moto."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from servers.install import find, node
from servers.process import NotThere, Process, free_ports

Kind = Literal["kinesalite", "moto"]
REGION = "us-east-1"
# Of servers that nobody but this machine can reach and that forget everything: no secret, but boto3 asks for some.
CREDENTIALS: Mapping[str, str] = MappingProxyType(
    {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local-only", "AWS_DEFAULT_REGION": REGION}
)
# Its own command listens on every interface. With a folder it keeps what it has over a restart.
LISTEN = """
const [module, port, path] = process.argv.slice(1);
const options = {createStreamMs: 50, deleteStreamMs: 50, updateStreamMs: 50, shardLimit: 1000};
if (path) options.path = path;
// It falls over a client that is killed in the middle of a call; Amazon's does not.
process.on('uncaughtException', (error) => console.error(error));
require(module)(options).listen(Number(port), '127.0.0.1');
"""


@dataclass(frozen=True, slots=True)
class S3:
    """An S3 server over a folder; `env` holds the credentials that it takes."""

    endpoint: str
    env: Mapping[str, str]
    server: Process

    def url(self, bucket: str, prefix: str = "") -> str:
        """A place in a bucket, as our settings name it."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    @property
    def pids(self) -> tuple[int | None, ...]:
        return (self.server.pid,)


@dataclass(frozen=True, slots=True)
class Kinesis:
    """A Kinesis server; any credentials will do, `env` holds some. moto forgets all when it is killed."""

    endpoint: str
    env: Mapping[str, str]
    server: Process

    def url(self, stream: str) -> str:
        """A stream, as our settings name it."""
        return f"kinesis://{stream}?endpoint={self.endpoint}&region={REGION}"

    @property
    def pids(self) -> tuple[int | None, ...]:
        return (self.server.pid,)


def s3(folder: Path, *, port: int = 0, credentials: Mapping[str, str] = CREDENTIALS) -> S3:
    """Under `folder`, on a free port unless one is given; not started."""
    program = find("versitygw")
    if program is None:
        raise NotThere("there is no versitygw here: `make servers` installs it")
    (free,) = free_ports(1)
    home = folder.resolve() / "s3"
    (home / "buckets").mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{port or free}"
    words = (program, "--quiet", "--port", address, "--health", "/health", "posix", str(home / "buckets"))
    root = {
        "ROOT_ACCESS_KEY": credentials["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": credentials["AWS_SECRET_ACCESS_KEY"],
    }
    env = {**credentials, "AWS_DEFAULT_REGION": REGION}
    server = Process("s3", str(home), words, f"http://{address}/health", env=root)
    return S3(f"http://{address}", env, server)


def kinesis(folder: Path, kind: Kind = "kinesalite", *, port: int = 0, keep: bool = False) -> Kinesis:
    """Under `folder`, on a free port unless one is given; `keep`: over a restart. Not started."""
    (free,) = free_ports(1)
    home = folder.resolve() / kind
    home.mkdir(parents=True, exist_ok=True)
    number = str(port or free)
    endpoint = f"http://127.0.0.1:{number}"
    if kind == "moto":
        words = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", number)
        return Kinesis(endpoint, dict(CREDENTIALS), Process(kind, str(home), words, f"{endpoint}/moto-api/"))
    module, program = find("kinesalite-module"), node()
    if module is None or program is None:
        raise NotThere("there is no kinesalite here: `make servers` installs it")
    words = (program, "-e", LISTEN, module, number, str(home / "streams") if keep else "")
    return Kinesis(endpoint, dict(CREDENTIALS), Process(kind, str(home), words, endpoint))
