"""Starting and stopping: one gateway per folder, no open door by accident, a clean end, TLS that verifies."""

import datetime
import hashlib
import json
import resource
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from talking import one_chunk, post, stored

from serving import inside, serving, start, stop
from sparring.cli import main
from sparring.config import Config, GatewayConfig
from sparring.errors import ConfigError
from sparring.gateway.certificates import own_addresses, self_signed
from sparring.gateway.credentials import ApiKeys
from sparring.gateway.server import GatewayServer, bound, serve
from sparring.registry.file import Folder

NOW_MS = 1_790_000_000_000


def spar(*words):
    return subprocess.run(
        [sys.executable, "-m", "sparring", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_second_gateway_on_the_same_folder_is_refused(server):
    done = spar("serve", "--data", str(server.data), "--port", "0")
    assert done.returncode == 1
    assert done.stderr == (
        f"spar: {server.data}: another gateway (process {server.process.pid}) has this data folder. "
        "Stop it, or use --data.\n"
    )


def test_a_port_in_use_is_a_sentence(server, tmp_path):
    done = spar("serve", "--data", str(tmp_path), "--port", str(server.port))
    assert done.returncode == 1
    assert done.stderr == (
        f"spar: [gateway] port: 127.0.0.1:{server.port} cannot be bound: Address already in use. "
        "Stop what uses it, or give --port 0.\n"
    )


@pytest.mark.parametrize(
    ("keys", "words", "sentence"),
    [
        (False, (), "--host 0.0.0.0: it would be reachable from elsewhere without TLS. Add --tls self-signed."),
        (
            False,
            ("--tls", "self-signed"),
            "--host 0.0.0.0: it would be reachable from elsewhere and there is no key. "
            "Run `spar keys create NAME` first.",
        ),
        (True, (), "--host 0.0.0.0: it would be reachable from elsewhere without TLS. Add --tls self-signed."),
    ],
)
def test_nothing_but_loopback_is_bound_without_keys_and_tls(tmp_path, keys, words, sentence):
    if keys:
        ApiKeys(Folder(tmp_path, 0o600)).create("one", ("read",), NOW_MS)
    done = spar("serve", "--data", str(tmp_path), "--host", "0.0.0.0", "--port", "0", *words)
    assert done.returncode == 1
    assert done.stderr == f"spar: {sentence}\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_answers_what_it_accepted(tmp_path, signum):
    server = start(tmp_path / "data")
    acknowledged, gone = [], threading.Event()

    def upload():
        with httpx.Client(base_url=server.url, timeout=20) as client:
            for number in range(10_000):
                try:
                    response = post(client, [one_chunk(number)])
                except httpx.TransportError:
                    break
                if response.status_code != 200:
                    break
                acknowledged.append(number)
        gone.set()

    uploader = threading.Thread(target=upload)
    uploader.start()
    idle = socket.create_connection(("127.0.0.1", server.port))
    while len(acknowledged) < 5:
        time.sleep(0.01)
    begun = time.monotonic()
    assert stop(server, signum) == 0
    assert time.monotonic() - begun < 15  # the promise is 3 s; the machine may be busy
    assert gone.wait(60)
    uploader.join()
    idle.close()
    kept = [chunk.header.episode for chunk in stored(tmp_path / "data")]
    assert len(kept) == len(set(kept))
    assert {one_chunk(number).header.episode for number in acknowledged} <= set(kept)


def test_tls_is_served_verified_by_its_own_certificate_and_refused_in_the_clear(tmp_path):
    data = tmp_path / "data"
    text = ApiKeys(Folder(data, 0o600)).create("one", ("read",), NOW_MS)[1]
    with serving(data, "--tls", "self-signed", "--host", "127.0.0.1") as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(data / "tls-cert.pem"))
        with httpx.Client(base_url=server.url, verify=context, headers={"Authorization": f"Bearer {text}"}) as client:
            assert client.get("/v1/games").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url + "/healthz")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/healthz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", server.port)) as plain, old.wrap_socket(plain) as wrapped:
            assert wrapped.version() == "TLSv1.2"
            der = wrapped.getpeercert(binary_form=True)
        assert server.fingerprint.replace(":", "").lower() == hashlib.sha256(der).hexdigest()
    assert (data / "tls-key.pem").stat().st_mode & 0o777 == 0o600


def test_a_self_signed_certificate_is_made_again_for_a_new_host_and_names_this_machines_addresses(tmp_path):
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def made(host, later_days=0):
        certificate, key = self_signed(tmp_path, host, now + datetime.timedelta(days=later_days))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificate.read_bytes(), {str(name.value) for name in names}

    first, names = made("127.0.0.1")
    assert names == {"localhost", socket.gethostname(), "127.0.0.1", "::1"}
    assert made("127.0.0.1", later_days=300)[0] == first
    second, names = made("play.example")
    assert (second != first, "play.example" in names) == (True, True)
    wide, names = made("0.0.0.0")
    assert {one for one in own_addresses() if one not in ("127.0.0.1", "::1")} <= names
    assert "0.0.0.0" not in names
    assert made("play.example")[0] == made("127.0.0.1")[0] == wide
    assert made("127.0.0.1", later_days=340)[0] != wide


def test_a_certificate_without_its_own_key_is_refused_with_a_sentence(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        self_signed(tmp_path / name, "127.0.0.1", datetime.datetime.now(datetime.UTC))
    words = ("--tls-cert", str(tmp_path / "a" / "tls-cert.pem"), "--tls-key", str(tmp_path / "b" / "tls-key.pem"))
    done = spar("serve", "--data", str(tmp_path / "data"), "--port", "0", *words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("spar: [gateway] tls_cert: they do not fit: ")


def test_keys_are_made_listed_and_revoked_from_the_command_line(tmp_path):
    made = json.loads(
        spar("keys", "create", "studio", "--scopes", "record,read", "--data", str(tmp_path), "--json").stdout
    )
    assert made["scopes"] == ["record", "read"]
    listed = spar("keys", "list", "--data", str(tmp_path))
    assert made["id"] in listed.stdout
    assert made["key"] not in listed.stdout
    assert spar("keys", "create", "x", "--scopes", "root", "--data", str(tmp_path)).stderr == (
        "spar: --scopes: there is no scope 'root'. Choose from record, act, read:game, read, node, admin.\n"
    )
    assert spar("keys", "revoke", "studio", "--data", str(tmp_path)).returncode == 0
    assert spar("keys", "revoke", "studio", "--data", str(tmp_path)).returncode == 1
    assert [json.loads(line)["action"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()] == [
        "create",
        "revoke",
    ]


def test_it_can_be_started_inside_a_program_and_stopped_from_another_thread(tmp_path):
    config = Config(data=str(tmp_path / "data"), gateway=GatewayConfig(port=0))
    ready, told = threading.Event(), []

    def note(serving: GatewayServer) -> None:
        told.append(serving)
        ready.set()

    runner = threading.Thread(target=serve, args=(config, note))
    runner.start()
    assert ready.wait(30)
    try:
        assert httpx.get(told[0].url + "/healthz").json() == {"status": "ok", "into": "store"}
        with pytest.raises(ConfigError, match="another gateway"):
            serve(config, note)
    finally:
        told[0].stop()
        runner.join(30)
    assert not runner.is_alive()


def test_the_socket_names_its_protocol_so_that_answers_are_not_held_back():
    with bound("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio turns Nagle off for such alone


def sample(text, name, **labels):
    """The value of one series, as Prometheus reads it."""
    (value,) = (
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name and one.labels == labels
    )
    return value


def test_the_metrics_are_what_prometheus_reads(http):
    before = http.get("/metrics").text
    post(http, [one_chunk(1), one_chunk(2), one_chunk(1)])
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert sample(answer.text, "spar_chunks_total", verdict="new") == 2
    assert sample(answer.text, "spar_chunks_total", verdict="had") == 1
    assert sample(answer.text, "spar_steps_total") == 10
    assert sample(answer.text, "spar_sample_rate") == 1
    assert sample(answer.text, "spar_queue_capacity_chunks") > sample(answer.text, "spar_queue_chunks") == 0
    assert sample(answer.text, "spar_commits_total") == sample(before, "spar_commits_total") + 1
    assert sample(answer.text, "spar_requests_total", endpoint="post_chunks", status="200") == 1
    assert sample(answer.text, "spar_request_seconds_bucket", le="+Inf") == (
        sample(answer.text, "spar_request_seconds_count")
    )
    assert sample(answer.text, "process_resident_memory_bytes") > 1 << 20
    kinds = {family.name: family.type for family in text_string_to_metric_families(answer.text)}
    assert (kinds["spar_steps"], kinds["spar_request_seconds"], kinds["spar_sockets"]) == (
        "counter",
        "histogram",
        "gauge",
    )
    assert "e+0" not in answer.text  # resident memory is above a million
    newer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert newer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert newer.text.endswith("# EOF\n")


def test_pages_carry_their_headers(http):
    page = http.get("/")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "'self'" in page.headers["content-security-policy"]


def test_a_store_that_cannot_write_is_never_an_ok(tmp_path):
    """A limit on file sizes, set while it runs, is what a full disk looks like to it."""
    with serving(tmp_path / "data") as server, httpx.Client(base_url=server.url, timeout=30) as client:
        post(client, [one_chunk(1)]).raise_for_status()
        limit = (tmp_path / "data" / "experience.db-wal").stat().st_size + 100
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        answers = [post(client, [one_chunk(number)]) for number in range(2, 8)]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert refused
        for answer in refused:
            assert answer.status_code in (503, 507)
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "failed"
            assert "sqlite" not in answer.text.lower()
        said = {2 + at for at, answer in enumerate(answers) if answer.status_code == 200}
    kept = {chunk.header.episode for chunk in stored(tmp_path / "data")}
    assert {one_chunk(number).header.episode for number in said | {1}} <= kept


def test_a_full_queue_sends_callers_away_and_what_waited_is_kept(tmp_path):
    with inside(tmp_path / "data", queue_chunks=2) as running:
        held = sqlite3.connect(tmp_path / "data" / "experience.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")  # another process writes, so nothing can be committed

        def upload(number):
            with httpx.Client(base_url=running.url, timeout=30) as client:
                return post(client, [one_chunk(number)])

        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(upload, number) for number in range(6)]
            deadline = time.monotonic() + 60
            while sum(one.done() for one in waiting) < 2:  # two are being kept at most, two wait
                assert time.monotonic() < deadline
                time.sleep(0.01)
            held.rollback()
            held.close()
            answers = [one.result() for one in waiting]
    sent_away = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(answer.json()["error"]["code"] == "busy" for answer in sent_away)
    assert all(answer.headers["retry-after"] == "1" for answer in sent_away)
    kept = {chunk.header.episode for chunk in stored(tmp_path / "data")}
    expected = {one_chunk(n).header.episode for n, answer in enumerate(answers) if answer.status_code == 200}
    assert kept == expected


def test_retention_runs_when_it_starts_and_says_what_went(tmp_path):
    data = tmp_path / "data"
    with inside(data) as running, httpx.Client(base_url=running.url) as client:
        post(client, [one_chunk(1)]).raise_for_status()
    assert len(stored(data)) == 1
    with serving(data, "--set", "store.keep_days=1e-9"):
        deadline = time.monotonic() + 30
        while not (data / "audit.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert stored(data) == []
    (line,) = (data / "audit.jsonl").read_text().splitlines()
    assert {**json.loads(line), "at_ms": 0} == {
        "at_ms": 0,
        "action": "retention",
        "by": "serve",
        "episodes": 1,
        "chunks": 1,
    }


def test_an_unknown_benchmark_is_a_sentence(capsys):
    assert main(["bench", "nosuch"]) == 1
    assert capsys.readouterr().err.startswith("spar: bench/: there is no benchmark 'nosuch'. Choose from ")
