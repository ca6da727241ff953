"""Wrong addresses and servers that are not there: one sentence, soon, and no server needed to say it."""

import socket
import time

import pytest

from sparring.cli import main
from sparring.errors import ConfigError, SparringError, Unreachable
from sparring.store import open_store
from sparring.store.cassandra.session import CassandraAddress


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("cassandra:///plays", "is not cassandra://HOST"),
        ("cassandra://one", "is not cassandra://HOST"),
        ("cassandra://one/Plays", "is not cassandra://HOST"),
        ("cassandra://one:1,two:2/plays", "is not one port"),
        ("cassandra://me:secret@one/plays", "a URL is no place for credentials"),
        ("cassandra://one/plays?consistancy=one", "Did you mean consistency"),
        ("cassandra://one/plays?consistency=most", "one of one, two"),
        ("cassandra://one/plays?replication=0", "1 to 9 copies"),
        ("cassandra://one/plays?ca=/no/such.pem", "Name a readable PEM file"),
    ],
)
def test_a_wrong_url_is_a_sentence_about_the_setting(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_store(url)
    assert caught.value.where == "[store] url"
    assert "secret" not in str(caught.value)


def test_a_url_says_hosts_port_keyspace_and_how_sure_to_be() -> None:
    found = CassandraAddress.read("cassandra://a,b:9999/plays?consistency=ONE&read_consistency=local_one&replication=3")
    assert (found.hosts, found.port, found.keyspace) == (("a", "b"), 9999, "plays")
    assert (found.consistency, found.read_consistency, found.replication) == ("one", "local_one", 3)
    assert str(found) == "cassandra://a,b:9999/plays"


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1,127.0.0.2,127.0.0.3:1", "no-such-host.invalid:9042"])
def test_a_server_that_is_not_there_is_said_within_ten_seconds(hosts: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match=r"Check that the nodes run and that \[store\] url names them"):
        open_store(f"cassandra://{hosts}/plays")
    assert time.monotonic() - began_s < 30  # ten on a quiet machine


def test_a_server_that_never_answers_is_given_up_within_ten_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began_s = time.monotonic()
        with pytest.raises(SparringError, match=r"\[store\] url"):
            open_store(f"cassandra://127.0.0.1:{deaf.getsockname()[1]}/plays")
        assert time.monotonic() - began_s < 30  # ten on a quiet machine


def test_commands_say_it_without_a_traceback(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    words = ["--data", str(tmp_path), "--set", "store.url=cassandra://127.0.0.1:1/plays"]
    for command in (["store", "migrate"], ["store", "describe"], ["data", "stats"]):
        assert main([*command, *words]) == 1
        assert "no node answers" in capsys.readouterr().err
