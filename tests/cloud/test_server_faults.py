"""Every command that opens stream, store or registry, with each fault of a server: one sentence, soon, no traceback.

Real processes. A command may wait 10 seconds for a server that is not as it should be; what it waits for a processor on
a machine that does much else is not counted.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from servers.aws_servers import S3, Kinesis
from servers.cassandra_cluster import Cassandra
from servers.process import free_ports

SPAR = str(Path(sys.executable).parent / "spar")
KEYS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "never-shown", "AWS_SESSION_TOKEN": "never-shown"}
NO_KEYS: dict[str, str] = {}
NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
SOON_S, PATIENCE_S = 10.0, 120.0
TOGETHER = 3

FROM_STORE = ("train", "cartpole", "--from", "store", "--steps", "100")
COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "stream": (("serve",), ("sink",), ("sink", "--spark", "spark://127.0.0.1:1"), ("stream", "describe")),
    "store": (("serve",), FROM_STORE, ("store", "describe"), ("store", "migrate"), ("data", "stats")),
    "registry": (("serve",), FROM_STORE, ("models", "list"), ("evaluate", "champion:cartpole")),
}


def url(part: str, port: int) -> str:
    """Where that part is said to be."""
    return {
        "stream": f"kinesis://play?region=us-east-1&endpoint=http://127.0.0.1:{port}",
        "store": f"cassandra://127.0.0.1:{port}/sparring",
        "registry": f"s3://bucket/models?region=us-east-1&endpoint=http://127.0.0.1:{port}",
    }[part]


def waited(command: Sequence[str], home: Path, env: Mapping[str, str]) -> str:
    """All that a command says, which ends with 1 and has not waited for anybody for more than SOON_S."""
    begun_s = time.monotonic()
    with (home / "said.txt").open("w+") as said:
        process = subprocess.Popen(command, cwd=home, env=env, stdout=said, stderr=subprocess.STDOUT)
        try:
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                assert time.monotonic() - begun_s < PATIENCE_S, command
                time.sleep(0.02)
            ran_ns, due_ns, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
            idle_s = time.monotonic() - begun_s - (int(ran_ns) + int(due_ns)) / 1e9
        finally:
            process.kill()
            code = process.wait()
        said.seek(0)
        text = said.read()
    assert code == 1, (command, text)
    assert idle_s < SOON_S, (command, idle_s)
    return text


def told(folder: Path, words: Sequence[str], setting: str, env: Mapping[str, str]) -> str:
    """The one line that a command says before it gives up."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CASSANDRA_"))}
    home = folder / "-".join(words).replace("/", "")
    home.mkdir()
    port = ("--port", "0") if words[0] == "serve" else ()
    command = [SPAR, *words, *port, "--data", str(home), "--set", setting]
    said = waited(command, home, clean | NOWHERE | env)
    assert "Traceback" not in said, (command, said)
    assert "never-shown" not in said, (command, said)
    lines = [line for line in said.splitlines() if line]
    assert len(lines) == 1, (command, said)
    return lines[0]


def all_told(folder: Path, part: str, where: str, env: Mapping[str, str] = KEYS) -> list[str]:
    """What each command that opens the part says, side by side: most of the time they wait."""
    setting, commands = f"{part}.url={where}", COMMANDS[part]
    if "nowhere" in where:
        commands = [words for words in commands if words != ("store", "migrate")]  # which makes what is missing
    with ThreadPoolExecutor(TOGETHER) as together:
        return list(together.map(lambda words: told(folder, words, setting, env), commands))


NAMES = {  # which setting, and what to do: a sentence has one of these
    "stream": r"spar: \[stream\] url \(kinesis://play\): .+\. (Check|Run|Set) .+",
    "store": r"spar: cassandra://127\.0\.0\.1[^ ]*/sparring: .+\. (Check that .*\[store\] url|Run `spar store) .+",
    "registry": r"spar: registry\.url \(s3://bucket/models\): .+\. (Check endpoint=|Set AWS_|Run|Create it).+",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", COMMANDS)
def test_nobody_listens(part: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    for said in all_told(tmp_path, part, url(part, port)):
        assert re.fullmatch(NAMES[part], said), said
        assert str(port) in said


@pytest.mark.slow
@pytest.mark.parametrize("part", COMMANDS)
def test_it_accepts_and_never_answers(part: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        for said in all_told(tmp_path, part, url(part, port)):
            assert re.fullmatch(NAMES[part], said), said
            assert str(port) in said


@pytest.mark.slow
def test_none_of_three_nodes_ever_answers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    hosts = [f"127.0.0.{1 + number}" for number in range(3)]
    deaf = [socket.create_server((host, port)) for host in hosts]
    try:
        for said in all_told(tmp_path, "store", f"cassandra://{','.join(hosts)}:{port}/sparring"):
            assert re.fullmatch(NAMES["store"], said), said
    finally:
        for one in deaf:
            one.close()


@pytest.mark.parametrize("part", ["stream", "registry"])
def test_there_are_no_credentials(part: str, tmp_path: Path) -> None:
    for said in all_told(tmp_path, part, url(part, 9), NO_KEYS):
        assert "there are no AWS credentials" in said
        assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in said


class Expired(BaseHTTPRequestHandler):
    """Answers as Amazon's services do to a token of yesterday."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kinesis = "X-Amz-Target" in self.headers
        said = {"__type": "ExpiredTokenException", "message": "The security token included in the request is expired"}
        error = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        body = (json.dumps(said) if kinesis else error).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/x-amz-json-1.1" if kinesis else "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def expired() -> Iterator[int]:
    """The port of a server to which every token is too old."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Expired) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["stream", "registry"])
def test_the_token_has_expired(part: str, tmp_path: Path) -> None:
    with expired() as port:
        for said in all_told(tmp_path, part, url(part, port)):
            assert "expired" in said
            assert re.search(r"renew AWS_SESSION_TOKEN|set fresh AWS_\* variables", said), said


@pytest.mark.servers
def test_stream_keyspace_or_bucket_is_missing(
    tmp_path: Path, kinesalite_server: Kinesis, cassandra_server: Cassandra, s3_server: S3
) -> None:
    places = {
        "stream": (kinesalite_server.url("nowhere"), kinesalite_server.env, "Run `spar stream create`"),
        "store": (cassandra_server.url("nowhere"), NO_KEYS, "Run `spar store migrate`"),
        "registry": (s3_server.url("nowhere", "models"), s3_server.env, "Create it, or check its name"),
    }
    for part, (where, env, do) in places.items():
        folder = tmp_path / part
        folder.mkdir()
        for said in all_told(folder, part, where, env):
            assert "nowhere" in said
            assert do in said


@pytest.mark.slow
def test_the_doctor_waits_for_silent_servers_side_by_side(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        settings = [word for part in COMMANDS for word in ("--set", f"{part}.url={url(part, port)}")]
        command = [SPAR, "doctor", "--json", "--data", str(tmp_path), "--set", "gateway.port=0", *settings]
        said = waited(command, tmp_path, os.environ | NOWHERE | KEYS)
    found = {one["what"]: one for one in json.loads(said.splitlines()[-1])["findings"]}
    for part in COMMANDS:
        assert not found[part]["ok"]
        assert found[part]["fix"]
