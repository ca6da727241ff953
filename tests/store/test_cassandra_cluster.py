"""Three nodes, one killed in the middle: nothing lost, nothing twice; and a node that wants a password."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from keyspaces import migrated

from derived import GAME, chunks_of, differences, episode_of
from servers import cassandra_cluster
from servers.running import cassandra, installed
from sparring.errors import StoreFailed
from sparring.store import open_store
from sparring.store.protocol import Query

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]
WRITER = [sys.executable, str(Path(__file__).parent / "writer.py")]
EPISODES = 150


def test_a_node_killed_while_three_write_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    with cassandra(tmp_path, nodes=3) as cluster:
        url = migrated(cluster.url("plays"))
        writers = [
            subprocess.Popen([*WRITER, url, str(client), "0", str(EPISODES)], stdout=subprocess.PIPE, text=True)
            for client in range(3)
        ]
        lines: list[list[str]] = [[] for _ in writers]
        assert writers[0].stdout is not None
        while len(lines[0]) < EPISODES // 4:
            lines[0].append(writers[0].stdout.readline())
        cluster.nodes[2].kill()
        for writer, said in zip(writers, lines, strict=True):
            assert writer.stdout is not None
            said += writer.stdout.read().splitlines(keepends=True)
            writer.stdout.close()
            assert writer.wait() == 0
        with open_store(url) as store:
            for client, said in enumerate(lines):
                acknowledged = {int(line.split()[1]) for line in said if line.startswith("ok ")}
                assert len(acknowledged) >= EPISODES - 10, said[-3:]
                for n in set(range(EPISODES)) - acknowledged:  # an append of unknown fate is sent again
                    assert {kept.verdict for kept in store.append(chunks_of(5, client, n))} <= {"new", "had"}
        cluster.nodes[2].restart()
        with open_store(url) as store:
            found: dict[str, list[int]] = {}
            for chunk in store.read(Query(GAME)):
                assert differences(chunk) == []
                found.setdefault(chunk.header.episode, []).append(chunk.header.first_step)
            wanted = {episode_of(5, client, n): [0, 40, 80] for client in range(3) for n in range(EPISODES)}
            assert found == wanted
            assert store.stats(GAME).chunks == 9 * EPISODES


def test_a_node_that_wants_a_password_is_answered_from_the_environment_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed():
        cluster = cassandra_cluster.described(tmp_path)
    file = Path(cluster.nodes[0].folder) / "cassandra.yaml"
    wants = "authenticator: PasswordAuthenticator\nauthorizer: CassandraAuthorizer\n"
    file.write_text(file.read_text() + wants)
    cassandra_cluster.start(cluster)
    try:
        began_s = time.monotonic()
        with pytest.raises(StoreFailed, match="CASSANDRA_USERNAME and CASSANDRA_PASSWORD"):
            open_store(cluster.url("plays"))
        monkeypatch.setenv("CASSANDRA_USERNAME", "cassandra")
        monkeypatch.setenv("CASSANDRA_PASSWORD", "wrong")
        with pytest.raises(StoreFailed, match="CASSANDRA_USERNAME and CASSANDRA_PASSWORD") as caught:
            open_store(cluster.url("plays"))
        assert "wrong'" not in str(caught.value)
        assert time.monotonic() - began_s < 20
    finally:
        cluster.nodes[0].kill()
