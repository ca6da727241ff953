"""`sparring.connect("kinesis://…")`: a trusted game server writes straight into the stream, without a gateway."""

import logging
import time

import numpy as np
import pytest

import sparring
from servers.process import free_ports
from serving import inside
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game
from sparring.stream import open_stream
from sparring.stream.protocol import BEGINNING
from sparring.wire.chunk import decode
from stream.made import make
from stream.unkind import Refuse, name_of, unkind

PLAYER = "0123456789abcdef" * 2


def played(game, episodes: int = 3) -> None:
    player = MockPlayer(game, script_of("random", game.spec))
    for number in range(episodes):
        play(open_game("cartpole"), [player], number, 11)


def everything(url: str):
    with open_stream(url) as stream:
        return [placed for shard in stream.shards() for placed in stream.read(shard, BEGINNING)]


@pytest.mark.servers
def test_what_is_recorded_is_in_the_stream_under_its_pseudonym(new_stream, tmp_path):
    url = new_stream(2)
    with sparring.connect(url, game="cartpole", player=PLAYER, folder=tmp_path) as game:
        played(game)
        assert game.flush(20)
        assert game.statistics().new_chunks == game.statistics().chunks == 3
    found = everything(url)
    assert {placed.uploader for placed in found} == {f"stream:{name_of(url)}"}
    heads = [decode(placed.data).header for placed in found]
    assert [head.player for head in heads] == [PLAYER] * 3
    assert all(abs(placed.arrived_ms - time.time() * 1000) < 60_000 for placed in found)


@pytest.mark.servers
def test_what_cannot_be_sent_waits_in_the_spool(kinesalite_server, local_credentials, tmp_path):
    url = make(kinesalite_server, 1)
    with unkind(kinesalite_server.endpoint) as proxy:
        settings = {"folder": tmp_path, "retry_most_s": 0.2, "close_timeout_s": 0.2}
        with sparring.connect(proxy.url(name_of(url)), "cartpole", PLAYER, **settings) as game:
            proxy.rule = lambda operation, body: Refuse("ExpiredTokenException")
            played(game)
            assert not game.flush(1.0)
            assert "these AWS credentials have expired" in game.statistics().last_problem
            assert game.statistics().waiting_chunks == 3
        proxy.rule = lambda operation, body: None
        with sparring.connect(proxy.url(name_of(url)), "cartpole", PLAYER, **settings) as game:
            assert game.flush(20)
    assert len(everything(url)) == 3


def test_a_game_begins_although_its_stream_is_away(tmp_path, caplog, local_credentials):
    (port,) = free_ports(1)
    url = f"kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:{port}"
    with (
        caplog.at_level(logging.WARNING, "sparring.client"),
        sparring.connect(url, "cartpole", PLAYER, folder=tmp_path, close_timeout_s=0.1) as game,
        game.episode() as episode,
    ):
        episode.act(np.zeros(4, np.float32))
        assert game.wait_for_model(5.0) is None
    assert f"sparring.connect (kinesis://plays): no Kinesis server answers at http://127.0.0.1:{port}" in caplog.text
    assert "models do not come by a stream, and gateway= is not given: act() takes a random legal action" in caplog.text


@pytest.mark.servers
def test_models_come_from_the_gateway_that_is_named(new_stream, tmp_path):
    url = new_stream(1)
    with (
        inside(tmp_path / "data") as gateway,
        sparring.connect(url, "cartpole", PLAYER, folder=tmp_path / "game", gateway=gateway.url) as game,
    ):
        assert game.wait_for_model(10.0) is None  # it was asked, and has no champion yet
        played(game, 1)
        assert game.flush(20)
    assert len(everything(url)) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"player": "alice"},
            "sparring.connect(player=…): the player of a stream is a pseudonym. Give 32 hex digits, such as an HMAC "
            "of the name under a secret of yours; names are never kept.",
        ),
        (
            {"act": "server"},
            'sparring.connect: act="server" is a gateway\'s, and a stream is none. '
            "Give gateway=, the address of `spar serve`, too.",
        ),
        (
            {"token": "secret"},
            "sparring.connect: token is a gateway's, and a stream is none. "
            "Give gateway=, the address of `spar serve`, too.",
        ),
    ],
)
def test_what_a_stream_does_not_do_is_said(settings, sentence, tmp_path):
    with pytest.raises(ConfigError) as told:
        sparring.connect("kinesis://plays?region=us-east-1", "cartpole", folder=tmp_path, **settings)
    assert str(told.value) == sentence


def test_a_gateway_beside_a_gateway_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="gateway= goes with a stream"):
        sparring.connect("http://127.0.0.1:9", "cartpole", folder=tmp_path, gateway="http://127.0.0.1:9")


@pytest.mark.servers
def test_a_stream_that_is_not_there_is_said_at_once(kinesalite_server, local_credentials, tmp_path):
    with pytest.raises(Missing) as told:
        sparring.connect(kinesalite_server.url("nowhere"), "cartpole", PLAYER, folder=tmp_path)
    assert str(told.value).startswith("sparring.connect (kinesis://nowhere): there is no such stream")
