"""The servers of the cloud path answer on the loopback alone, come back after kill -9, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import boto3
import psutil
import pytest

from servers.aws_servers import REGION
from servers.process import NotReady, Process, answers, free_ports
from servers.running import Kinesis, cassandra, kinesis, s3, spark

pytestmark = pytest.mark.servers
ROOT = Path(__file__).parents[2]


def addresses(*pids):
    """Where a server and what it started listen."""
    family = [member for pid in pids for member in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    found = (connection for one in family for connection in one.net_connections("tcp"))
    return {line.laddr.ip.removeprefix("::ffff:") for line in found if line.status == psutil.CONN_LISTEN}


def cql(server, *statements):
    """The rows of the last of them. By a process of its own: the driver's threads outlive its session."""
    script = (
        "import sys\nfrom cassandra.cluster import Cluster\n"
        "with Cluster(sys.argv[1].split(','), port=int(sys.argv[2])) as cluster, cluster.connect() as session:\n"
        "    for statement in sys.argv[3:]: rows = list(session.execute(statement, timeout=30))\n"
        "    print(rows)\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", script, ",".join(server.hosts), str(server.port), *statements]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_cassandra_keeps_what_it_acknowledged_through_kill_minus_nine(tmp_path):
    with cassandra(tmp_path) as server:
        assert addresses(*server.pids) == {"127.0.0.1"}
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        cql(
            server,
            f"CREATE KEYSPACE kept WITH replication = {replication}",
            "CREATE TABLE kept.rows (id int PRIMARY KEY, word text)",
            "INSERT INTO kept.rows (id, word) VALUES (7, 'here')",
        )
        before = server.pids
        server.nodes[0].kill()
        assert server.pids == (None,)
        server.nodes[0].restart()
        assert server.pids != before
        assert "Row(id=7, word='here')" in cql(server, "SELECT * FROM kept.rows")
    assert server.pids == (None,)


def test_s3_keeps_an_object_and_honours_a_condition(tmp_path, local_credentials):
    with s3(tmp_path) as server:
        assert addresses(*server.pids) == {"127.0.0.1"}
        client = boto3.client("s3", endpoint_url=server.endpoint)
        client.create_bucket(Bucket="models")
        client.put_object(Bucket="models", Key="a/b", Body=b"weights", IfNoneMatch="*")
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(Bucket="models", Key="a/b", Body=b"others", IfNoneMatch="*")
        server.server.restart()
        assert client.get_object(Bucket="models", Key="a/b")["Body"].read() == b"weights"
        client.close()
    assert server.pids == (None,)


def put_and_get(endpoint, stream):
    client = boto3.client("kinesis", endpoint_url=endpoint, region_name=REGION)
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    client.put_records(StreamName=stream, Records=[{"Data": b"one", "PartitionKey": "k"}])
    found = read(client, stream)
    client.close()
    return found


def read(client, stream):
    (shard,) = client.list_shards(StreamName=stream)["Shards"]
    begin = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    got = client.get_records(ShardIterator=client.get_shard_iterator(**begin)["ShardIterator"])
    return [record["Data"] for record in got["Records"]]


@pytest.mark.parametrize("kind", ["kinesalite", "moto"])
def test_kinesis_gives_back_what_was_put(kind, tmp_path, local_credentials):
    with kinesis(tmp_path, kind) as server:
        assert addresses(*server.pids) == {"127.0.0.1"}
        assert put_and_get(server.endpoint, "play") == [b"one"]


def test_kinesalite_keeps_its_streams_when_asked(tmp_path, local_credentials):
    with kinesis(tmp_path, keep=True) as server:
        assert put_and_get(server.endpoint, "play") == [b"one"]
        server.server.restart()
        client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name=REGION)
        assert read(client, "play") == [b"one"]
        client.close()


@pytest.mark.slow
def test_a_spark_worker_comes_back_to_its_master(tmp_path):
    with spark(tmp_path) as cluster:
        assert addresses(*cluster.pids) == {"127.0.0.1"}
        cluster.workers[0].kill()
        assert None in cluster.pids
        cluster.workers[0].restart()
        assert answers(f"{cluster.ui}/json/", '"aliveworkers" : 1')
    assert set(cluster.pids) == {None}


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    words = (sys.executable, "-c", "import sys; sys.exit('the port is taken')")
    broken = Process("broken", str(tmp_path), words, f"http://127.0.0.1:{free_ports(1)[0]}/")
    with pytest.raises(NotReady, match="broken ended: the port is taken"):
        broken.start()
    broken.kill()


def test_what_a_server_started_goes_with_it(tmp_path):
    begun = "import subprocess, time; subprocess.Popen(['sleep', '600'], process_group=0); print(1, flush=True); "
    parent = Process("parent", str(tmp_path), (sys.executable, "-c", begun + "time.sleep(600)"), "").launch()
    while not parent.log.read_text():
        time.sleep(0.05)
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


SHARED = """
import os, pytest
@pytest.mark.parametrize("turn", range(2))
def test_{name}(moto_server, turn):
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{{moto_server.pids[0]}}\\n")
"""
OWN = """
import os, time
from servers.running import kinesis
def test_{name}(moto_server, tmp_path):
    with kinesis(tmp_path, "moto") as own, open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{{moto_server.pids[0]}} {{own.pids[0]}}\\n")
        seen.flush()
        time.sleep(60)
"""


@pytest.fixture
def a_run_of_two_workers(tmp_path):
    """A test run with our conftest and two files, and the file in which its tests write the server's pid."""

    def start(content):
        (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
        for name in ("first", "second"):
            (tmp_path / f"test_{name}.py").write_text(content.format(name=name))
        place = {"SEEN": str(tmp_path / "seen"), "PYTHONPATH": str(ROOT / "tests")}
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
        words += ["-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
        return subprocess.Popen(
            words, env=os.environ | place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start, tmp_path / "seen"


def test_two_workers_share_one_server_that_ends_with_their_run(a_run_of_two_workers):
    start, seen = a_run_of_two_workers
    with start(SHARED) as run:
        said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    (pid,) = set(seen.read_text().split())
    assert len(seen.read_text().split()) == 4
    assert not psutil.pid_exists(int(pid))


def test_a_run_that_is_killed_leaves_no_server(a_run_of_two_workers):
    start, seen = a_run_of_two_workers
    with start(OWN) as run:
        until = time.monotonic() + 120
        while not seen.exists() or not seen.read_text().endswith("\n"):
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        pids = [int(pid) for pid in seen.read_text().split()]
        for process in (psutil.Process(run.pid), *psutil.Process(run.pid).children()):
            if process.name() != "sh":  # the watch is what is tested
                process.send_signal(signal.SIGKILL)
    assert len(pids) >= 2
    until = time.monotonic() + 30
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < until, f"one of {pids} is left"
        time.sleep(0.1)


def test_every_server_has_a_url_as_our_settings_name_it(tmp_path):
    server = Kinesis("http://127.0.0.1:1", {}, Process("x", str(tmp_path), ("true",), ""))
    assert server.url("play") == "kinesis://play?endpoint=http://127.0.0.1:1&region=us-east-1"
