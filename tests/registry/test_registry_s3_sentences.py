"""What is wrong with a bucket is one sentence that names the setting and what to do, within seconds."""

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from buckets import BUCKET, through
from small_models import small_model
from toll import toll

from sparring.cli import main
from sparring.errors import ConfigError, SparringError, Unreachable
from sparring.registry import open_registry
from sparring.registry.s3.bucket import Address

WITHIN_S = 10.0
HEAD = "registry.url (s3://b/models): "
EMPTY = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


@pytest.fixture(autouse=True)
def _credentials(local_credentials, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextmanager
def answering(status, body, puts=None):
    """A server on loopback that says the same to every GET, and `puts` to every PUT."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, content = (puts or (status, body)) if self.command == "PUT" else (status, body)
            if self.command == "GET" and puts and "list-type" not in self.path:
                code, content = 404, error("NoSuchKey")
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"x"')
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_POST = answer

        def log_message(self, *_):
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error(code, message="Because"):
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def refused(url, kind=ConfigError):
    begun = time.monotonic()
    with pytest.raises(kind) as caught:
        open_registry(url)
    assert time.monotonic() - begun < WITHIN_S
    said = str(caught.value)
    assert said.count("\n") == 0
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("ExpiredToken", 400, "these AWS credentials have expired. Run `aws sso login`, or renew AWS_SESSION_TOKEN."),
        ("AccessDenied", 403, "s3:ListBucket is not allowed. Let the policy of these credentials allow s3:ListBucket"),
        ("NoSuchBucket", 404, "there is no such bucket. Create it, or check its name and endpoint= in registry.url"),
        ("InvalidAccessKeyId", 403, "http://127.0.0.1:PORT does not know this access key. Check AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", 403, "the secret key does not fit the access key. Check AWS_SECRET_ACCESS_KEY"),
        ("RequestTimeTooSkewed", 403, "this machine's clock is wrong. Set it"),
        ("AuthorizationHeaderMalformed", 400, "the bucket is in another region. Set region= in registry.url"),
        (
            "Odd",
            400,
            "http://127.0.0.1:PORT answered Odd to ListObjectsV2: Because. Check that endpoint= in",
        ),
    ],
)
def test_what_the_server_refuses_names_the_setting(code, status, words):
    with answering(status, error(code)) as endpoint:
        said = refused(f"s3://b/models?endpoint={endpoint}&region=us-east-1", SparringError)
    assert said.startswith(f"{HEAD}{words.replace('http://127.0.0.1:PORT', endpoint)}"), said


def test_a_server_that_is_no_s3_server_is_said():
    for status, page in ((404, b"<html>not found</html>"), (200, b"hello"), (503, b"busy")):
        with answering(status, page) as endpoint:
            said = refused(f"s3://b/models?endpoint={endpoint}&region=us-east-1", SparringError)
        assert said.startswith(HEAD), said


def test_no_server_and_a_silent_one_are_said_in_time():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    said = refused(f"s3://b/models?endpoint=http://127.0.0.1:{port}&region=us-east-1", Unreachable)
    assert said == (
        f"{HEAD}no S3 server answers at http://127.0.0.1:{port} (EndpointConnectionError). "
        "Check endpoint= and region= in registry.url, and that the server runs and can be reached."
    )
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        said = refused(f"s3://b/models?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&region=x", Unreachable)
    assert "(ReadTimeoutError)" in said


def test_missing_credentials_are_said_before_anything_is_asked(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    said = refused("s3://b/models?endpoint=http://127.0.0.1:9&region=us-east-1")
    assert said.startswith(f"{HEAD}there are no AWS credentials")
    assert said.endswith(
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role."
    )
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "nobody" in refused("s3://b/models?endpoint=http://127.0.0.1:9&region=us-east-1")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://key:secret@b/models", "a URL is no place for credentials. Set AWS_ACCESS_KEY_ID"),
        (
            "s3://b/models?endpoint=127.0.0.1:9",
            "endpoint='127.0.0.1:9' in it. Give an address such as http://HOST:PORT",
        ),
        ("s3://b/models?public=yes", "public='yes' in it. Give public=1 or public=0."),
        ("s3://b/models?secret=x", "unknown or repeated option 'secret' in it. Use region, endpoint"),
        ("s3://b/models?region=a&region=b", "unknown or repeated option 'region' in it"),
        ("s3://b/models?fresh_s=soon", "fresh_s='soon' in it. Give seconds"),
        ("s3://B_AD!/models?region=us-east-1&endpoint=http://127.0.0.1:9", "Check the name, endpoint= and region="),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_right_form(url, words):
    said = refused(url)
    assert words in said
    assert "secret" not in said.replace("'secret'", "")


def test_the_setting_that_holds_the_address_is_the_one_that_is_named():
    with pytest.raises(ConfigError, match=r"^sink\.lake_url: public"):
        Address.read("s3://b/lake?public=2", "sink.lake_url")


def test_a_server_that_ignores_conditions_is_refused_before_a_model_is_written():
    with (
        answering(200, EMPTY, puts=(200, b"")) as endpoint,
        open_registry(f"s3://b/models?endpoint={endpoint}&region=us-east-1") as registry,
        pytest.raises(ConfigError, match="this server ignores `If-None-Match"),
    ):
        registry.publish(small_model())


@pytest.mark.servers
def test_a_missing_bucket_and_a_wrong_secret_are_said_by_a_real_server(s3_server, monkeypatch):
    said = refused(s3_server.url("nowhere", "models"))
    assert said.startswith("registry.url (s3://nowhere/models): there is no such bucket.")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "the secret key does not fit the access key" in refused(s3_server.url(BUCKET, "models"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    assert "does not know this access key" in refused(s3_server.url(BUCKET, "models"))


@pytest.mark.servers
def test_a_server_that_went_away_is_said_by_every_call(bucket_url, tmp_path, s3_server):
    with toll(s3_server.endpoint) as way:
        registry = open_registry(through(bucket_url, way.endpoint))
    with registry, pytest.raises(Unreachable, match="no S3 server answers"):
        registry.ids()


def test_a_command_prints_the_sentence_and_no_traceback(capsys, tmp_path):
    url = "s3://b/models?endpoint=http://127.0.0.1:9&region=us-east-1"
    assert main(["models", "list", "--data", str(tmp_path), "--set", f"registry.url={url}"]) != 0
    said = capsys.readouterr().err
    assert "no S3 server answers at http://127.0.0.1:9" in said
    assert "Traceback" not in said
