"""Where a client's models come from: the place that the gateway points to, the gateway itself, or its own disk."""

import contextlib
import socket
import threading

import pytest
from peer import Peer
from served_models import always
from test_client_models import STATE, TRUST, publish

from sparring.client.gateway import MAX_ANSWER_BYTES, Gateway
from sparring.errors import Unreachable
from sparring.wire.model import ONNX

LEFT, RIGHT = always(0), always(1)


@pytest.fixture
def bucket():
    made = Peer()
    yield made
    made.close()


def point(peer, model, place):
    """Let the peer send who asks for it directly to `place`; others get the files from itself."""
    for name in ("card.json", ONNX):
        path = f"/v1/models/{model.id}/{name}"
        content = peer.files[path]

        def answer(headers, path=path, content=content):
            asked = peer.gets[-1][0]
            return (307, {"Location": f"{place}{path}?signature=x"}, b"") if "direct=1" in asked else (200, {}, content)

        peer.files[path] = answer


def test_files_are_fetched_where_the_gateway_points_to_and_its_token_stays_with_it(peer, bucket, connect):
    publish(peer, LEFT, counter=1)
    bucket.files = {path: content for path, content in peer.files.items() if path.startswith("/v1/models/")}
    point(peer, LEFT, bucket.url)
    connection = connect(peer.url, trust=TRUST, token="secret")
    assert connection.wait_for_model() == LEFT.id
    assert [path for path, _ in bucket.gets] == [
        f"/v1/models/{LEFT.id}/card.json?signature=x",
        f"/v1/models/{LEFT.id}/{ONNX}?signature=x",
    ]
    assert not any("Authorization" in headers for _, headers in bucket.gets)
    with connection.episode() as episode:
        assert episode.act(STATE) == 0


def test_a_place_that_cannot_be_reached_is_passed_by_and_not_asked_again(peer, connect):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{closed.getsockname()[1]}"
    publish(peer, LEFT, counter=1)
    point(peer, LEFT, place)
    connection = connect(peer.url, trust=TRUST)
    assert connection.wait_for_model() == LEFT.id
    asked = [path for path, _ in peer.gets if path.startswith("/v1/models/")]
    assert asked == [
        f"/v1/models/{LEFT.id}/card.json?direct=1",
        *(f"/v1/models/{LEFT.id}/{n}" for n in ("card.json", ONNX)),
    ]


def test_a_place_that_refuses_is_passed_by(peer, bucket, connect):
    publish(peer, LEFT, counter=1)
    point(peer, LEFT, bucket.url)  # which has nothing
    assert connect(peer.url, trust=TRUST).wait_for_model() == LEFT.id


def test_what_another_place_gives_is_verified_like_all_else(peer, bucket, connect):
    publish(peer, LEFT, counter=1)
    bucket.files = {path: content for path, content in peer.files.items() if path.startswith("/v1/models/")}
    bucket.files[f"/v1/models/{LEFT.id}/{ONNX}"] = RIGHT.files[ONNX]
    point(peer, LEFT, bucket.url)
    connection = connect(peer.url, trust=TRUST)
    assert connection.wait_for_model() is None
    assert "not what its card says" in connection.statistics().last_problem


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/x?signature=s", "file:///etc/passwd", "", "ftp://x/y"])
def test_a_gateway_over_tls_cannot_send_a_client_where_there_is_none(place):
    gateway = Gateway("https://127.0.0.1:9", "cartpole", None, 1.0, None)
    with pytest.raises(Unreachable, match="is no place for models") as caught:
        gateway._redirected(place)
    gateway.close()
    assert "signature" not in str(caught.value)


def tagged(peer):
    """Let the peer answer 304 to whoever has the champion."""
    body = peer.files["/v1/games/cartpole/champion"]
    peer.files["/v1/games/cartpole/champion"] = lambda headers: (
        (304, {"ETag": '"one"'}, b"") if headers.get("If-None-Match") == '"one"' else (200, {"ETag": '"one"'}, body)
    )


def champions_asked(peer):
    return [headers.get("If-None-Match") for path, headers in peer.gets if "/champion" in path]


def test_a_restart_asks_only_whether_the_champion_changed(peer, connect):
    publish(peer, LEFT, counter=1)
    tagged(peer)
    first = connect(peer.url, trust=TRUST, poll_every_s=3600.0)
    assert first.wait_for_model() == LEFT.id
    first.close()
    assert champions_asked(peer)[0] is None
    peer.gets.clear()
    again = connect(peer.url, trust=TRUST, poll_every_s=3600.0)
    assert again.wait_for_model() == LEFT.id
    assert set(champions_asked(peer)) == {'"one"'}
    assert not [path for path, _ in peer.gets if path.startswith("/v1/models/")]
    publish(peer, RIGHT, counter=2)
    assert again.wait_for_model() == RIGHT.id


def test_a_restart_without_its_model_on_disk_asks_for_everything(peer, connect, tmp_path):
    publish(peer, LEFT, counter=1)
    tagged(peer)
    first = connect(peer.url, trust=TRUST)
    assert first.wait_for_model() == LEFT.id
    first.close()
    (kept,) = (tmp_path / "client").rglob(ONNX)
    kept.write_bytes(b"damaged")
    peer.gets.clear()
    assert connect(peer.url, trust=TRUST).wait_for_model() == LEFT.id
    assert champions_asked(peer)[0] is None


def test_of_an_answer_that_does_not_end_only_so_much_is_read():
    def endless(asked):
        said = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        part = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
        with contextlib.suppress(OSError):  # until the client hangs up
            asked.recv(1 << 16)
            asked.sendall(said)
            while sent[0] < 1 << 30:
                asked.sendall(part)
                sent[0] += len(part)
        asked.close()

    for call in (
        lambda gateway: gateway.champion("1", 0, ""),
        lambda gateway: gateway.spec(),
        lambda gateway: gateway.send([b""]),
    ):
        sent = [0]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = threading.Thread(target=lambda: endless(listener.accept()[0]))
            serving.start()
            gateway = Gateway(f"http://127.0.0.1:{listener.getsockname()[1]}", "cartpole", None, 30.0, None)
            with pytest.raises(Unreachable, match=f"it is above {MAX_ANSWER_BYTES} bytes"):
                call(gateway)
            gateway.close()
            serving.join()
        assert sent[0] < 4 * MAX_ANSWER_BYTES
