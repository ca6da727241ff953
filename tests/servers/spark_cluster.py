"""A Spark master and its workers, out of the wheel."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servers.install import CannotBeMade, java
from servers.install import spark as spark_home
from servers.process import NotThere, Process, free_ports


@dataclass(frozen=True, slots=True)
class Spark:
    """A standalone cluster. `env` and `conf` are what a driver on this machine needs."""

    url: str
    ui: str  # the master's page
    env: Mapping[str, str]
    conf: Mapping[str, str]
    master: Process
    workers: tuple[Process, ...]

    @property
    def pids(self) -> tuple[int | None, ...]:
        return tuple(process.pid for process in (self.master, *self.workers))


def described(folder: Path, workers: int = 1, *, cores: int = 2, memory: str = "1g", port: int = 0) -> Spark:
    """A master and workers of `cores` and `memory` each, on free ports unless one is given; not started."""
    try:
        program = str(Path(spark_home()) / "bin" / "spark-class")
    except CannotBeMade as error:
        raise NotThere(str(error)) from None
    free, page, *others = free_ports(2 + 2 * workers)
    home = folder.resolve() / "spark"
    env = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(Path(java() or "").resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
    }
    daemon = {**env, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "SPARK_LOG_DIR": str(home)}
    url, ui = f"spark://127.0.0.1:{port or free}", f"http://127.0.0.1:{page}"
    words = (program, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
    words += ("--port", url.rpartition(":")[2], "--webui-port", str(page))
    master = Process("master", str(home), words, f"{ui}/json/", "ALIVE", daemon)
    hands = []
    for number in range(workers):
        name, mine = f"worker{1 + number}", others[2 * number : 2 * number + 2]
        words = (program, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", str(mine[0]))
        words += ("--webui-port", str(mine[1]), "--cores", str(cores), "--memory", memory)
        words += ("--work-dir", str(home / name), url)
        # The worker's own page names its master once that has taken it in; the master's would still list a dead one.
        hands.append(Process(name, str(home), words, f"http://127.0.0.1:{mine[1]}/json/", url, daemon))
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.driver.extraJavaOptions": "-Xss8m",
    }
    return Spark(url, ui, env, conf, master, tuple(hands))


def start(cluster: Spark) -> None:
    """The master, then all workers at once."""
    cluster.master.start()
    for worker in cluster.workers:
        worker.launch()
    for worker in cluster.workers:
        worker.wait()
