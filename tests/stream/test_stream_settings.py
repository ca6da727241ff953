"""A setting that is wrong is said in one sentence, soon, with its name and what to do."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from servers.process import free_ports
from sparring.errors import ConfigError, Missing, SparringError, Unreachable
from sparring.stream import open_stream
from sparring.stream.kinesis.client import KinesisAddress
from stream.unkind import Refuse, name_of, unkind

SOON_S = 30.0  # ten on a quiet machine
AWS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)


def told(url: str) -> SparringError:
    """What opening the stream says, within the time that a person waits."""
    begun = time.monotonic()
    with pytest.raises(SparringError) as raised:
        open_stream(url)
    assert time.monotonic() - begun < SOON_S
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.fixture
def credentials(monkeypatch, tmp_path):
    """Some, and no file or server of the machine's that could give others."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never-shown")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def test_a_url_says_name_region_and_endpoint_and_nothing_else():
    url = "kinesis://plays?region=eu-west-1&endpoint=http://127.0.0.1:4567/"
    found = KinesisAddress.read(url)
    assert (found.name, found.region, found.endpoint) == ("plays", "eu-west-1", "http://127.0.0.1:4567")
    found = KinesisAddress.read("kinesis://plays")
    assert (found.name, found.region, found.endpoint, found.setting) == ("plays", "", "", "[stream] url")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("kinesis://", "[stream] url: 'kinesis://' is not kinesis://NAME?region=…&endpoint=…. Write it so."),
        ("kinesis://a b", "[stream] url: 'kinesis://a b' is not kinesis://NAME?region=…&endpoint=…. Write it so."),
        (
            "kinesis://plays?zone=a",
            "[stream] url: unknown or repeated option 'zone' in it. Use region, endpoint, each once.",
        ),
        (
            "kinesis://plays?endpoint=127.0.0.1:4567",
            "[stream] url: endpoint='127.0.0.1:4567' in it. "
            "Give an address such as http://HOST:PORT, or leave it out for Amazon's own.",
        ),
        (
            "kinesis://AKIA:secret@plays",
            "[stream] url: a URL is no place for credentials. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment.",
        ),
        ("kafka://plays", "[stream] url: no stream speaks 'kafka://plays'. Use one of kinesis://."),
    ],
)
def test_a_url_that_is_wrong_is_said(url, sentence):
    error = told(url)
    assert isinstance(error, ConfigError)
    assert str(error) == sentence


def test_without_credentials_it_is_said_which_are_wanted(credentials):
    credentials.delenv("AWS_ACCESS_KEY_ID")
    error = told("kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:9")
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "[stream] url (kinesis://plays): there are no AWS credentials (Unable to locate credentials). "
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role."
    )


def test_a_profile_that_is_not_there_is_said(credentials):
    credentials.setenv("AWS_PROFILE", "nobody")
    assert "The config profile (nobody) could not be found. Set AWS_PROFILE to" in str(told("kinesis://plays"))


def test_without_a_region_it_is_said_where_to_write_one(credentials):
    error = told("kinesis://plays")
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "[stream] url (kinesis://plays): no region is set. Add region=… to [stream] url, or set AWS_REGION."
    )


def test_an_endpoint_where_nobody_listens_is_said(credentials):
    (port,) = free_ports(1)
    error = told(f"kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:{port}")
    assert isinstance(error, Unreachable)
    assert str(error) == (
        f"[stream] url (kinesis://plays): no Kinesis server answers at http://127.0.0.1:{port} "
        "(EndpointConnectionError). "
        "Check endpoint= and region= in [stream] url, and that the server runs and can be reached."
    )


def test_an_endpoint_that_accepts_and_keeps_silent_is_given_up_in_time(credentials):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = told(f"kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:{silent.getsockname()[1]}")
    assert isinstance(error, Unreachable)
    assert "(ReadTimeoutError)" in str(error)


@contextmanager
def page(status: int, body: bytes):
    """A web server that is no Kinesis."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"<html>no such page</html>"), (200, b"<html>hello</html>"), (200, b"{}")]
)
def test_an_endpoint_that_is_no_kinesis_is_said(credentials, status, body):
    with page(status, body) as endpoint:
        error = told(f"kinesis://plays?region=us-east-1&endpoint={endpoint}")
    assert isinstance(error, Unreachable)
    assert "Check that endpoint= in [stream] url is a Kinesis server" in str(error)


@pytest.mark.servers
def test_a_stream_that_is_not_there_is_said_with_the_command_that_makes_it(server):
    error = told(server.url("nowhere"))
    assert isinstance(error, Missing)
    assert str(error) == (
        f"[stream] url (kinesis://nowhere): there is no such stream at {server.endpoint}. "
        "Run `spar stream create` for it, or correct its name and region= in it."
    )


@pytest.mark.servers
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("ExpiredTokenException", ConfigError, "these AWS credentials have expired. Run `aws sso login`, or renew"),
        (
            "UnrecognizedClientException",
            ConfigError,
            "does not know this access key. Check",
        ),
        ("AccessDeniedException", ConfigError, "kinesis:DescribeStreamSummary is not allowed. Let the policy of these"),
    ],
)
def test_credentials_that_do_not_do_are_said(server, new_stream, code, kind, says):
    url = new_stream(1)
    with unkind(server.endpoint) as proxy:
        proxy.rule = lambda operation, body: Refuse(code)
        error = told(proxy.url(name_of(url)))
        assert proxy.calls["DescribeStreamSummary"] == 1, "it was tried again, which helps nobody"
    assert isinstance(error, kind)
    assert says in str(error)


@pytest.mark.servers
def test_credentials_that_expire_later_are_said_too_and_renewed_ones_go_on(server, new_stream):
    url = new_stream(1)
    with unkind(server.endpoint) as proxy, open_stream(proxy.url(name_of(url))) as stream:
        proxy.rule = lambda operation, body: Refuse("ExpiredTokenException")
        with pytest.raises(ConfigError, match="these AWS credentials have expired"):
            stream.shards()
        proxy.rule = lambda operation, body: None
        assert len(stream.shards()) == 1


def spar(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sparring", *words], capture_output=True, text=True, check=False, env=os.environ
    )
    return done.returncode, done.stderr


def test_spar_serve_says_what_is_wrong_with_its_stream(credentials, tmp_path):
    (port,) = free_ports(1)
    url = f"kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:{port}"
    code, said = spar("serve", "--data", str(tmp_path), "--port", "0", "--set", f"stream.url={url}")
    assert code == 1
    assert f"spar: [stream] url (kinesis://plays): no Kinesis server answers at http://127.0.0.1:{port}" in said
    assert "Traceback" not in said
    assert "never-shown" not in said


def test_without_boto3_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in [name for name in sys.modules if name.startswith("sparring.stream.")]:
        monkeypatch.delitem(sys.modules, name)
    error = told("kinesis://plays?region=us-east-1")
    assert str(error) == "[stream] url: the package 'boto3' is not installed. Run pip install 'sparring[aws]'."
