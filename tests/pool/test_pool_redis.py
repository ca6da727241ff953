"""Redis as it fails: damaged values, a server that is killed, hangs, is full, wants a password, speaks TLS."""

import contextlib
import math
import os
import signal
import socket
import ssl
import threading
import time
from collections import deque
from datetime import UTC, datetime
from ipaddress import ip_address

import pytest
from cryptography.x509 import IPAddress
from pool_places import large_model

from registry.small_models import small_model
from servers.process import free_ports
from servers.running import redis
from sparring.errors import Missing, ModelDamaged, StoreFailed, Unreachable
from sparring.gateway.certificates import _make_certificate
from sparring.pool import open_pool

pytestmark = pytest.mark.servers
BOUND_S = 20.0  # ten times the timeout: a busy machine is slow, a call that waits for ever is a fault


def key_of(url, model):
    return url.partition("prefix=")[2].partition("&")[0].replace("%3A", ":") + model.id


@pytest.mark.parametrize("where", ["header", "card", "weights", "cut", "of another model", "empty"])
def test_a_damaged_value_is_read_again_from_the_registry_or_said(redis_place, registry, where):
    model, other = large_model(0), large_model(1)
    registry.publish(model)
    url, raw = redis_place.url(), redis_place.raw()
    key = key_of(url, model)
    with redis_place.open(url) as pool, redis_place.open(url, registry) as with_registry:
        pool.put(model)
        pool.put(other)
        whole = raw.get(key)
        places = {"header": 10, "card": whole.index(b'"policy"'), "weights": len(whole) - 1000}
        damaged = bytearray(whole)
        if where in places:
            damaged[places[where]] ^= 1
        values = {"cut": whole[:-1], "of another model": raw.get(key_of(url, other)), "empty": b""}
        raw.set(key, values.get(where, bytes(damaged)))
        with pytest.raises(ModelDamaged):
            pool.get(model.id)
        assert with_registry.get(model.id) == model
        assert raw.get(key) == whole  # put back
        assert pool.get(model.id) == model
    raw.close()


def test_a_key_of_another_kind_is_a_typed_error(redis_place):
    model, url, raw = small_model(), redis_place.url(), redis_place.raw()
    raw.lpush(key_of(url, model), "not ours")
    with redis_place.open(url) as pool, pytest.raises(StoreFailed, match="WRONGTYPE"):
        pool.get(model.id)
    raw.close()


def test_a_redis_that_is_killed_is_said_in_one_sentence_and_used_again_when_it_is_back(redis_place, registry):
    model, other = large_model(0), large_model(1)
    registry.publish(model)
    address = redis_place.server.ready
    with redis_place.open(redis_place.url(), registry) as pool:
        pool.put(model)
        redis_place.server.kill()
        began_s = time.monotonic()
        for call in (lambda: pool.get(model.id), lambda: pool.put(other), pool.ids, lambda: pool.drop(model.id)):
            with pytest.raises(Unreachable) as caught:
                call()
            assert str(caught.value).startswith(f"[league] pool_url: {address}/0 does not answer (ConnectionError: ")
            assert str(caught.value).endswith("or correct [league] pool_url; calls work again when it answers.")
        assert time.monotonic() - began_s < BOUND_S
        redis_place.server.start()
        assert pool.get(model.id) == model  # from the registry: the server forgot everything
        assert pool.ids() == [model.id]
        redis_place.server.restart()  # the connection at hand is from before
        assert pool.ids() == []


def test_a_redis_that_hangs_is_given_up_in_time_and_its_late_answer_is_nobodys(redis_place):
    models = [large_model(number) for number in range(2)]
    url = redis_place.url().replace("?", "?timeout_s=2&")
    with redis_place.open(url) as pool:
        for model in models:
            pool.put(model)
        pid = redis_place.server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            with pytest.raises(Unreachable, match="does not answer"):
                pool.get(models[0].id)
            with pytest.raises(Unreachable, match="does not answer"), open_pool(url):
                pass
            assert time.monotonic() - began_s < BOUND_S
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [pool.get(model.id) for model in reversed(models)] == models[::-1]


def test_a_wrong_password_is_said_without_it(tmp_path, monkeypatch):
    monkeypatch.delenv("REDIS_USERNAME", raising=False)
    with redis(tmp_path / "redis", "--requirepass", "right-password") as server:
        monkeypatch.setenv("REDIS_PASSWORD", "right-password")
        with open_pool(server.ready) as pool:
            pool.put(small_model())
        for wrong in ("never-to-be-said", ""):
            monkeypatch.setenv("REDIS_PASSWORD", wrong)
            with pytest.raises(StoreFailed) as caught:
                open_pool(server.ready)
            assert f"{server.ready}/0 refused the name or password" in str(caught.value)
            assert str(caught.value).endswith("Set REDIS_USERNAME and REDIS_PASSWORD in the environment.")
            assert "never-to-be-said" not in str(caught.value)


def test_a_full_redis_refuses_what_is_put_and_readers_use_the_registry(tmp_path, registry):
    models = [large_model(number) for number in range(40)]
    for model in models:
        registry.publish(model)
    with redis(tmp_path / "redis", "--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        url = f"{server.ready}/0?cache_bytes=0"
        with open_pool(url) as pool:
            with pytest.raises(StoreFailed) as caught:
                deque(map(pool.put, models))
            assert str(caught.value) == (
                f"[league] pool_url: {server.ready}/0 is full. Raise its maxmemory, set its maxmemory-policy to "
                "allkeys-lru, or set max_bytes in [league] pool_url."
            )
            there = pool.ids()
            assert there
            with pytest.raises(Missing):
                pool.get(models[-1].id)
        with open_pool(url, registry) as pool:
            assert [pool.get(model.id) for model in models] == models
            assert pool.ids() == there


def test_what_redis_evicts_by_itself_is_read_again_from_the_registry(tmp_path, registry):
    models = [large_model(number) for number in range(40)]
    for model in models:
        registry.publish(model)
    with (
        redis(tmp_path / "redis", "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lfu") as server,
        open_pool(f"{server.ready}/0?cache_bytes=0&max_bytes=3000000", registry) as pool,
    ):
        for model in models:
            pool.put(model)
        assert len(pool.ids()) < len(models)
        assert [pool.get(model.id) for model in models] == models


@contextlib.contextmanager
def tls_in_front_of(port, certificate, key, cut_after=math.inf):
    """A port that speaks TLS and passes everything on to `port`: the servers of the tests speak none. A connection
    breaks once the server has said more than `cut_after` bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    threads = []

    def copy(source, target, most):
        with contextlib.suppress(OSError):
            while most > 0 and (data := source.recv(1 << 16)):
                target.sendall(data)
                most -= len(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with contextlib.suppress(ssl.SSLError):
                    pair = context.wrap_socket(plain, server_side=True), socket.create_connection(("127.0.0.1", port))
                    sockets.extend(pair)
                    ways = (*pair, math.inf), (*pair[::-1], cut_after)
                    threads.extend(threading.Thread(target=copy, args=one) for one in ways)
                    for thread in threads[-2:]:
                        thread.start()

    sockets = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=serve))
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for one in sockets:
                one.close()


def test_rediss_verifies_the_servers_certificate(redis_place, tmp_path):
    certificate, key, model = tmp_path / "cert.pem", tmp_path / "key.pem", large_model(0)
    _make_certificate(certificate, key, [IPAddress(ip_address("127.0.0.1"))], datetime.now(UTC))
    port = int(redis_place.server.ready.rpartition(":")[2])
    with tls_in_front_of(port, certificate, key) as tls_port:
        with open_pool(f"rediss://127.0.0.1:{tls_port}/0?ca={certificate}") as pool:
            pool.put(model)
        with open_pool(f"rediss://127.0.0.1:{tls_port}/0?ca={certificate}") as pool:
            assert pool.get(model.id) == model
        with pytest.raises(Unreachable, match=rf"rediss://127.0.0.1:{tls_port}/0 does not answer .*certificate"):
            open_pool(f"rediss://127.0.0.1:{tls_port}/0")
    with open_pool(redis_place.server.ready) as pool:
        assert pool.ids() == [model.id]


def test_a_connection_that_breaks_within_a_value_gives_no_model_and_is_made_again(redis_place, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    _make_certificate(certificate, key, [IPAddress(ip_address("127.0.0.1"))], datetime.now(UTC))
    small, large = small_model(), large_model(1)
    with open_pool(redis_place.server.ready) as pool:
        pool.put(small)
        pool.put(large)
    port = int(redis_place.server.ready.rpartition(":")[2])
    with (
        tls_in_front_of(port, certificate, key, cut_after=100_000) as tls_port,
        open_pool(f"rediss://127.0.0.1:{tls_port}/0?ca={certificate}") as pool,
    ):
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"does not answer .*ConnectionError"):
                pool.get(large.id)
            assert pool.get(small.id) == small
            assert large.id in pool.ids()


def test_where_nothing_listens_the_url_is_named():
    (port,) = free_ports(1)
    with pytest.raises(Unreachable, match=rf"redis://127\.0\.0\.1:{port}/3 does not answer"):
        open_pool(f"redis://127.0.0.1:{port}/3")
