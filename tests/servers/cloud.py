"""The servers that a spar.toml names, on this machine: up, down, status (examples/cloud-on-one-machine/run.sh).

Stream, store and registry are started where their URLs say, with a Spark master and worker beside them. Data, logs
and pids are in `servers/` of the data folder; so is `cloud.env`, with credentials made here, for these servers alone.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import aws_servers, cassandra_cluster, spark_cluster
from servers.install import say
from servers.process import NotReady, NotThere, Process, answers, end
from sparring.config import Config, load
from sparring.errors import SparringError

LOOPBACK = ("127.0.0.1", "localhost")
SPAR = Path(sys.executable).parent / "spar"


class Unfit(Exception):
    """A spar.toml whose servers cannot be started here; says which key."""


def main() -> int:
    """0; 1 where a server cannot be started or, for status, does not run."""
    parser = argparse.ArgumentParser("run.sh", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "status"))
    parser.add_argument("config", type=Path, help="the spar.toml")
    parser.add_argument("--shards", type=int, default=4, help="of the stream, when it is made")
    parser.add_argument("--spark-port", type=int, default=7077, help="of the master")
    args = parser.parse_args()
    try:
        config = load(args.config)
        home = Path(config.data) / "servers"
        if args.verb == "down":
            return down(home)
        if args.verb == "status":
            return status(home)
        return up(config, args, home)
    except (SparringError, Unfit, NotThere, NotReady) as error:
        say(str(error), sys.stderr)
        return 1


def up(config: Config, args: argparse.Namespace, home: Path) -> int:
    """Every server answers, and stream, keyspace and bucket exist. What runs already is left as it is."""
    home.mkdir(parents=True, exist_ok=True)
    os.environ.update(_credentials(home))
    begun = time.monotonic()
    cluster, others = _described(config, home, args.spark_port)
    for server in (*others, *cluster.nodes):
        if server.pid is None:
            if answers(server.ready, server.says):
                raise Unfit(f"something else answers at {server.ready}: stop it, or change its port in {args.config}")
            say(f"{server.name} …")
            server.launch()
        if server in cluster.nodes[:-1]:
            server.wait()  # two that join at once may take the same ranges
    for server in _read(home):
        server.wait()
        say(f"{server.name} answers, pid {server.pid}, after {time.monotonic() - begun:.0f} s")
    cassandra_cluster.wait_until_all_know_all(cluster)
    _furnish(config, args)
    say(f"up. In each shell:  . {home / 'cloud.env'}\nthen:  spar doctor --config {args.config}")
    return 0


def down(home: Path) -> int:
    """Nothing runs. What the servers keep stays."""
    servers = _read(home)
    ran = [server.pid is not None for server in servers]
    with ThreadPoolExecutor(len(servers) or 1) as together:  # each takes seconds to put down what it holds
        list(together.map(lambda server: end(server.pidfile, gently_s=20.0), servers))
    for server, there in zip(servers, ran, strict=True):
        say(f"{server.name}: {'stopped' if there else 'was not running'}")
    return 0


def status(home: Path) -> int:
    """A line for each server."""
    servers = _read(home)
    well = [bool(server.pid) and answers(server.ready, server.says) for server in servers]
    for server, answering in zip(servers, well, strict=True):
        word = "answers" if answering else "does not answer" if server.pid else "is not running"
        say(f"{server.name:<12} {word:<16} pid {server.pid or '-':<8} {server.ready}")
    if not servers:
        say("nothing was started here")
    return 0 if servers and all(well) else 1


def _described(config: Config, home: Path, spark_port: int) -> tuple[cassandra_cluster.Cassandra, list[Process]]:
    """The cluster that the config names, and the other servers; written down before the first is started."""
    stream, registry = _endpoint("stream.url", config.stream.url), _endpoint("registry.url", config.registry_url)
    nodes, port = _nodes(config.store_url)
    kinesis = aws_servers.kinesis(home, port=stream, keep=True)
    bucket = aws_servers.s3(home, port=registry, credentials=dict(os.environ))
    cluster = cassandra_cluster.described(home, nodes, port=port)
    spark = spark_cluster.described(home, port=spark_port)
    known = {server.name: server for server in _read(home) if server.pid is not None}  # on ports of their own
    cluster = replace(cluster, nodes=tuple(known.get(node.name, node) for node in cluster.nodes))
    others = [bucket.server, kinesis.server, spark.master, *spark.workers]
    others = [known.get(server.name, server) for server in others]
    (home / "servers.json").write_bytes(msgspec.json.encode((*cluster.nodes, *others)))
    return cluster, others


def _nodes(url: str) -> tuple[int, int]:
    """How many nodes a store's URL names, and their port."""
    said = urlsplit(url)
    hosts = said.netloc.rpartition(":")[0].split(",") if ":" in said.netloc else said.netloc.split(",")
    wanted = [f"127.0.0.{1 + number}" for number in range(len(hosts))]
    if said.scheme != "cassandra" or hosts not in (wanted, ["localhost"]):
        do = "write cassandra://127.0.0.1:PORT/KEYSPACE to have it started, or 127.0.0.1,127.0.0.2,127.0.0.3:PORT"
        raise Unfit(f"store.url = {url!r}: {do}")
    return len(hosts), int(said.netloc.rpartition(":")[2]) if ":" in said.netloc else 9042


def _read(home: Path) -> tuple[Process, ...]:
    file = home / "servers.json"
    return msgspec.json.decode(file.read_bytes(), type=tuple[Process, ...]) if file.exists() else ()


def _endpoint(key: str, url: str) -> int:
    """The port of a URL's endpoint, which must be here."""
    given = parse_qs(urlsplit(url).query).get("endpoint", [""])[0]
    endpoint = urlsplit(given)
    if endpoint.scheme != "http" or endpoint.hostname not in LOOPBACK or endpoint.port is None:
        raise Unfit(f"{key} = {url!r}: its endpoint must be http://127.0.0.1:PORT to be started here")
    return endpoint.port


def _credentials(home: Path) -> dict[str, str]:
    """Made once for this folder; readable by its owner alone."""
    file = home / "cloud.env"
    if not file.exists():
        made = {
            "AWS_ACCESS_KEY_ID": f"local{secrets.token_hex(8)}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_DEFAULT_REGION": aws_servers.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",  # else boto3 asks the network who this machine is
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.writelines(f"export {name}={value}\n" for name, value in made.items())
    pairs = (line.removeprefix("export ").partition("=")[::2] for line in file.read_text().splitlines())
    return dict(pairs)


def _furnish(config: Config, args: argparse.Namespace) -> None:
    """Stream, keyspace with its tables, bucket: made where they are missing."""
    import boto3

    bucket, endpoint = urlsplit(config.registry_url), parse_qs(urlsplit(config.registry_url).query)["endpoint"][0]
    s3 = boto3.client("s3", endpoint_url=endpoint)
    if bucket.netloc not in [held["Name"] for held in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=bucket.netloc)
    for words in (("stream", "create", "--shards", str(args.shards)), ("store", "migrate")):
        done = subprocess.run([SPAR, *words, "--config", str(args.config)], capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip()
        say(f"spar {' '.join(words)}: {said.splitlines()[-1] if said else 'done'}")
        if done.returncode:
            raise NotReady(said)


if __name__ == "__main__":
    sys.exit(main())
