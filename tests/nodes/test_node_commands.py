"""`spar node` and `spar nodes`: what a person sees, and what is refused before anything starts."""

import json
import stat

import pytest

from peers import Peer, parent, run
from sparring.cli import main
from sparring.nodes.link import Tokens


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "0.0.0.0:8720", "--plain"], "reachable from elsewhere without encryption"),
        (["--listen", "8720"], "'8720' is no HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--workers", "0"], "--workers 0"),
        (["--listen", "127.0.0.1:0", "--cert", "x.pem"], "come together"),
        (["--listen", "127.0.0.1:0", "--cert", "x.pem", "--key", "y.pem"], "they do not fit"),
        (["--join", "ws://token@example.org:1"], "is not encrypted"),
        (["--join", "wss://example.org:1"], "without a token"),
        (["--join", ""], "it is no wss://TOKEN@HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--name", "my node"], "--name 'my node'. Use 1 to 64 letters"),
    ],
)
def test_a_wrong_call_is_refused_in_words(tmp_path, capsys, words, sentence):
    assert main(["node", *words, "--data", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert sentence in said.err + said.out


def test_a_token_is_for_its_owner_alone_and_is_rotated(tmp_path, capsys):
    tokens = Tokens(tmp_path / "nodes")
    before = tokens.read()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert (tokens.holder(before), tokens.holder("ü"), tokens.holder("")) == ("token", "", "")
    for words in (["node", "--rotate-token"], ["nodes", "rotate"]):
        assert main([*words, "--data", str(tmp_path)]) == 0
        assert tokens.read() != before
        assert tokens.holder(before) == ""
        before = tokens.read()
    said = capsys.readouterr().out
    assert said.count(str(tokens.path)) == 2
    assert before not in said


def test_nodes_are_listed_and_ordered_by_name(tmp_path, capsys):
    async def conversation(here):
        one = Peer(here, "one")
        await one.join()
        await one.exchange(1.0)
        await one.exchange(float("nan"))

    with parent(tmp_path) as here:
        run(conversation(here))
        here.wait(lambda: any(node.refused for state in here.board.parents() for node in state.nodes))
        assert main(["nodes", "--data", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "steps/s" in shown
        assert "not finite 1" in shown
        assert main(["nodes", "ban", "one", "--why", "noise", "--data", str(tmp_path), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["orders"]["banned"] == {"one": "noise"}
        [node] = said["parents"][0]["nodes"]
        assert (node["node"], node["merges"], node["refused"]) == ("one", 1, {"not finite": 1})
        assert main(["nodes", "allow", "one", "--data", str(tmp_path)]) == 0
        assert "no run here" not in capsys.readouterr().out
        assert main(["nodes", "ban", "onee", "--data", str(tmp_path)]) == 0
        assert "no run here has a node called 'onee' now" in capsys.readouterr().out
        assert main(["nodes", "allow", "one", "--data", str(tmp_path)]) == 1
        assert "neither drained nor banned" in capsys.readouterr().err
    assert main(["nodes", "drain", "--data", str(tmp_path)]) == 1


def test_many_names_of_strangers_are_forgotten_again(tmp_path):
    async def conversation(here):
        for number in range(12):
            stranger = Peer(here, f"stranger{number}")
            await stranger.join()
            await stranger.link.close()

    with parent(tmp_path, connections=4) as here:
        run(conversation(here))
        here.wait(lambda: not here.sessions.live)
        assert len(here.sessions.states) <= 6
