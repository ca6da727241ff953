"""Apache Cassandra on 127.0.0.1, 127.0.0.2, …: the daemon out of its jars, with small buffers and long patience."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servers.install import APT_JAVA, find, java
from servers.process import NotThere, Process, free_ports

Sync = Literal["batch", "periodic"]
HEAP = "512m"
KNOWN_S = 120.0
# One node is for speed; several are killed and started again, which takes 12 instead of 19 s of CPU so.
QUICK = ("-XX:TieredStopAtLevel=1",)
ADD_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
)
OPENED = (
    "java.io java.lang java.lang.module java.lang.reflect java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.loader jdk.internal.math jdk.internal.module jdk.internal.ref "
    "jdk.internal.reflect jdk.internal.util.jar sun.nio.ch"
)
ADD_OPENS = (*(f"java.base/{name}" for name in OPENED.split()), "jdk.management/com.sun.management.internal")
# periodic acknowledges a write up to 10 s before it is on the disk: a single node that is killed loses those.
SYNC = {"batch": "commitlog_sync: batch", "periodic": "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms"}
YAML = """\
cluster_name: sparring
num_tokens: 16
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage_port}"}}]
listen_address: {host}
rpc_address: {host}
storage_port: {storage_port}
native_transport_port: {port}
hints_directory: {data}/hints
data_file_directories: [{data}/data]
commitlog_directory: {data}/commitlog
cdc_raw_directory: {data}/cdc
saved_caches_directory: {data}/saved_caches
{sync}
commitlog_segment_size: 16MiB
commitlog_total_space: 256MiB
memtable_heap_space: 128MiB
memtable_offheap_space: 128MiB
file_cache_size: 64MiB
key_cache_size: 16MiB
row_cache_size: 0MiB
counter_cache_size: 0MiB
concurrent_compactors: 1
auto_snapshot: false
read_request_timeout: 15s
range_request_timeout: 15s
write_request_timeout: 15s
cas_contention_timeout: 15s
counter_write_request_timeout: 15s
truncate_request_timeout: 60s
request_timeout: 15s
"""
LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{ISO8601} %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class Cassandra:
    """A cluster. `nodes[1].kill()` is kill -9, `nodes[1].restart()` brings it back with its data."""

    hosts: tuple[str, ...]
    port: int
    nodes: tuple[Process, ...]

    def url(self, keyspace: str, options: str = "") -> str:
        """The store in a keyspace, with a replica on each of up to three nodes: `options` are more of its query."""
        replication = min(len(self.hosts), 3)
        query = "&".join(filter(None, (f"replication={replication}", options)))
        return f"cassandra://{','.join(self.hosts)}:{self.port}/{keyspace}?{query}"

    @property
    def pids(self) -> tuple[int | None, ...]:
        return tuple(node.pid for node in self.nodes)


def described(folder: Path, nodes: int = 1, *, sync: Sync = "batch", port: int = 0) -> Cassandra:
    """A cluster of so many nodes under `folder`, on free ports unless one is given or was kept there; not started."""
    java_program, jars = java(), find("cassandra-jars")
    if jars is None:
        raise NotThere("there is no Cassandra here: `make servers` installs it")
    if java_program is None:
        raise NotThere(f"there is no Java 17 here, which Cassandra runs on: {APT_JAVA}")
    between, free, *management = free_ports(2 + nodes)
    storage_port = _port_between(folder) or between
    hosts = tuple(f"127.0.0.{1 + number}" for number in range(nodes))
    cluster = []
    for number, host in enumerate(hosts):
        home = folder.resolve() / f"cassandra{1 + number}"
        home.mkdir(parents=True, exist_ok=True)
        places = {"host": host, "port": port or free, "storage_port": storage_port, "data": home}
        (home / "cassandra.yaml").write_text(YAML.format(**places, sync=SYNC[sync]))
        (home / "logback.xml").write_text(LOGBACK)
        words = (java_program, *(QUICK if nodes > 1 else ()), *_options(Path(jars), home, management[number]))
        cluster.append(Process(f"cassandra{1 + number}", str(home), words, f"cql://{host}:{port or free}"))
    return Cassandra(hosts, port or free, tuple(cluster))


def _port_between(folder: Path) -> int | None:
    """That on which the nodes of a cluster that was here before know each other: they would not meet on another."""
    kept = folder / "cassandra1" / "cassandra.yaml"
    found = re.search(r"^storage_port: (\d+)$", kept.read_text(), re.MULTILINE) if kept.exists() else None
    return int(found[1]) if found else None


def start(cluster: Cassandra) -> None:
    """One after another: two that join at once may take the same ranges, and one of them is then not in the cluster."""
    for node in cluster.nodes:
        node.start()
    wait_until_all_know_all(cluster)


def wait_until_all_know_all(cluster: Cassandra) -> None:
    """A node answers callers a second or two before the others have heard of it."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import WhiteListRoundRobinPolicy

    if len(cluster.nodes) == 1:
        return
    until_s = time.monotonic() + KNOWN_S
    for host in cluster.hosts:
        profile = ExecutionProfile(WhiteListRoundRobinPolicy([host]), request_timeout=30)
        profiles = {EXEC_PROFILE_DEFAULT: profile}
        with Cluster([host], port=cluster.port, execution_profiles=profiles, connect_timeout=30) as driver:
            session = driver.connect()
            while len(list(session.execute("SELECT peer FROM system.peers_v2"))) + 1 < len(cluster.nodes):
                assert time.monotonic() < until_s, f"{host} does not know its cluster"
                time.sleep(0.5)


def _options(jars: Path, home: Path, management_port: int) -> list[str]:
    (agent,) = jars.glob("jamm-*.jar")
    properties = {
        "jdk.attach.allowAttachSelf": "true",
        "cassandra.config": (home / "cassandra.yaml").as_uri(),
        "logback.configurationFile": (home / "logback.xml").as_uri(),
        "cassandra.storagedir": str(home),
        "cassandra.jmx.local.port": str(management_port),
        "cassandra.ring_delay_ms": "2000",
        "cassandra.skip_wait_for_gossip_to_settle": "0",
        "cassandra-foreground": "yes",
        "java.io.tmpdir": str(home),
    }
    return [
        *(f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Xss512k", "-XX:+UseG1GC", f"-javaagent:{agent}"),
        *(f"-D{name}={value}" for name, value in properties.items()),
        *(f"--add-exports={module}=ALL-UNNAMED" for module in ADD_EXPORTS),
        *(f"--add-opens={module}=ALL-UNNAMED" for module in ADD_OPENS),
        *("-cp", f"{home}{os.pathsep}{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
    ]
