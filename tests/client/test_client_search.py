"""`act(search_ms=…)` through every door: the client's own model, the gateway's, the play socket, `spar play`,
`spar evaluate` and `sparring.load`."""

import json
import subprocess
import sys

import numpy as np
import pytest
from websockets.sync.client import connect as open_socket

import sparring
from serving import decode_answer, inside, serving
from sparring.errors import ConfigError, Refused
from sparring.games.catalogue import open_game, spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.ids import new_episode
from sparring.wire.messages import End, Ended, Hello, Observe, Start, encode
from sparring.wire.model import Lineage

FOUR, TICTAC = "connect-four", "spiel:tic_tac_toe"
WIN, BEST = [3, 0, 3, 0, 3, 1], 3
LONG_MS = 30_000  # a search ends as soon as the best move is certain
LIMITS = (f"gateway.max_search_ms={LONG_MS}", "gateway.requests_per_s=1000000", "gateway.burst_requests=1000000")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Has champions of three games, none of which has learned anything."""
    data = tmp_path_factory.mktemp("search") / "data"
    words = [word for one in (f'games=["{TICTAC}"]', *LIMITS) for word in ("--set", one)]
    with serving(data, *words) as running:
        publish(data, FOUR, TICTAC, "duel")
        yield running


def publish(data, *games):
    """Champions that have learned nothing."""
    with open_registry(f"file://{data}/models") as registry:
        for game_id in games:
            spec = spec_of(game_id)
            network = default_network(spec.seats[0], hidden=(16,))
            lineage = Lineage(algorithm="test", config={}, steps={})
            model = make_model(spec, network, Network(network, 2).weights(), "categorical", lineage, 1)
            registry.publish(model)
            registry.promote(spec.id, model.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))


def played(game_id, moves):
    game = open_game(game_id)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    for move in moves:
        view = game.step([np.array([move], np.int32)] * 2)
    return game, {name: column[0] for name, column in view.observation[len(moves) % 2].items()}


@pytest.mark.parametrize("act", ["local", "server"])
def test_the_client_looks_ahead_where_the_board_shows_everything(server, tmp_path, act):
    _, seen = played(FOUR, WIN)
    options = {"folder": tmp_path, "act": act, "wait_for_model_s": 60.0, "act_timeout_s": 60.0}
    with sparring.connect(server.url, FOUR, **options) as connection, connection.episode(0) as episode:
        action = episode.act(seen, search_ms=np.float32(LONG_MS))
        assert action == BEST
        episode.record(seen, action)
        assert connection.statistics().act_fallbacks == 0
        with pytest.raises(Refused, match="search_ms=-1"):
            episode.act(seen, search_ms=-1)


@pytest.mark.parametrize("act", ["local", "server"])
def test_a_board_that_no_game_shows_is_refused_and_not_answered_by_chance(server, tmp_path, act):
    options = {"folder": tmp_path, "act": act, "wait_for_model_s": 60.0, "act_timeout_s": 60.0}
    with sparring.connect(server.url, FOUR, **options) as connection, connection.episode(0) as episode:
        _, hers = played(FOUR, [3])
        with pytest.raises(Refused, match="no running game shows this board"):
            episode.act(hers, search_ms=10)
        if act == "server":
            with pytest.raises(Refused, match="does not take so long here"):
                episode.act(played(FOUR, [])[1], search_ms=LONG_MS + 1)
        assert connection.statistics().act_fallbacks == 0


def test_where_the_gateway_has_no_time_for_a_search_the_model_acts_without_one(tmp_path):
    _, seen = played(FOUR, [])
    options = {"folder": tmp_path / "client", "act": "server", "act_timeout_s": 60.0}
    with inside(tmp_path / "data", requests_per_s=1.0, burst_requests=120) as running:
        publish(tmp_path / "data", FOUR)
        with sparring.connect(running.url, FOUR, **options) as connection, connection.episode(0) as episode:
            for _ in range(2):  # each millisecond counts as a request
                episode.record(seen, episode.act(seen, search_ms=100))
            statistics = connection.statistics()
        assert "answered 429" in statistics.last_problem
        assert statistics.act_fallbacks == 0  # none by chance


def test_another_game_needs_its_saved_state(server, tmp_path):
    game, seen = played(TICTAC, [0, 3, 1, 4])
    options = {"folder": tmp_path, "wait_for_model_s": 60.0}
    with sparring.connect(server.url, TICTAC, **options) as connection, connection.episode(0) as episode:
        assert episode.act(seen, search_ms=LONG_MS, state=game.save()) == 2
        with pytest.raises(Refused, match="does not show the whole state"):
            episode.act(seen, search_ms=10)
    with sparring.connect(server.url, TICTAC, act="server", **options) as connection:
        episode = connection.episode(0)
        with pytest.raises(Refused, match="takes no saved state"):
            episode.act(seen, search_ms=10, state=game.save())


def test_a_game_of_simultaneous_turns_is_refused(server, tmp_path):
    with sparring.connect(server.url, "duel", folder=tmp_path, wait_for_model_s=60.0) as connection:
        episode, seen = connection.episode(0), np.zeros(spec_of("duel").seats[0].observation[0].shape, np.float32)
        with pytest.raises(Refused, match="move at the same time"):
            episode.act(seen, search_ms=10)


def test_the_play_socket_looks_ahead(server):
    _, seen = played(FOUR, WIN)
    episode, board = new_episode(), seen["observation/board"].tolist()
    with open_socket(server.url.replace("http", "ws", 1) + f"/v1/games/{FOUR}/play") as socket:

        def say(message):
            socket.send(encode(message, text=True))
            return decode_answer(socket.recv(timeout=60))

        say(Hello(1))
        socket.send(encode(Start(episode, record=False), text=True))
        assert say(Observe(episode, 0, {"board": board}, 6, search_ms=LONG_MS)).action == BEST
        assert say(Observe(episode, 0, {"board": board}, 8, search_ms=LONG_MS + 1)).field == "search_ms"


def test_an_observation_whose_search_was_refused_is_sent_again_and_earns_once(server):
    episode, boards = new_episode(), [played(FOUR, moves)[1]["observation/board"].tolist() for moves in ([], [3, 0])]
    with open_socket(server.url.replace("http", "ws", 1) + f"/v1/games/{FOUR}/play") as socket:

        def say(message):
            socket.send(encode(message, text=True))
            return decode_answer(socket.recv(timeout=60))

        say(Hello(1))
        socket.send(encode(Start(episode), text=True))
        assert say(Observe(episode, 0, {"board": boards[0]}, 0)).action in range(7)
        impossible = [[[1] * 7] * 6] * 2
        assert "no running game" in say(Observe(episode, 0, {"board": impossible}, 2, 0.5, search_ms=10)).message
        assert say(Observe(episode, 0, {"board": boards[1]}, 2, 0.5)).action in range(7)
        assert say(End(episode, 0, {"board": boards[1]}, 0.5, True, 1.0)) == Ended(episode, 0, "new")
    with open_store(f"sqlite:///{server.data}/experience.db", check=False) as store:
        (chunk,) = [one for one in store.read(Query(game=FOUR)) if one.header.episode == episode]
    assert chunk.columns["reward"].tolist() == [0.5, 0.5]
    assert chunk.columns["observation/board"].tolist() == boards


def test_a_loaded_model_and_an_evaluation_look_ahead(server):
    data, (_, seen) = server.data, played(FOUR, WIN)
    model = sparring.load(f"champion:{FOUR}", data=data)
    board = seen["observation/board"]
    assert model.predict(board, search_ms=LONG_MS) == BEST
    with pytest.raises(ConfigError, match="search_ms"):
        model.predict(board[None], search_ms=200)
    with pytest.raises(ConfigError, match=r"legal has shape \(2,\)"):
        model.predict(board, [1, 1], search_ms=200)
    command = [sys.executable, "-m", "sparring", "evaluate", f"champion:{FOUR}", "--against", f"champion:{FOUR}"]
    words = ["--search-ms", "100", "--episodes", "12", "--data", str(data), "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["search_ms"], said["wins"] > said["losses"]) == (100.0, True), done.stderr


def test_the_terminal_game_looks_ahead(server):
    command = [
        sys.executable,
        "-m",
        "sparring",
        "play",
        FOUR,
        "--search-ms",
        "1000",
        "--data",
        str(server.data),
        "--json",
    ]
    moves = "1\n1\n1\n1\n7\n7\n7\n7\n" * 6  # lets it make four in a row
    done = subprocess.run(command, input=moves, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout.splitlines()[-1])["result"] == "lost", done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["play", FOUR, "--model", "script:tactical", "--search-ms", "50"], "a script does not search"),
        (["play", FOUR, "--search-ms", "nan"], "a search lasts 0 ms or more"),
        (["evaluate", f"script:{FOUR}/tactical", "--search-ms", "50"], "is not one model"),
        (["evaluate", f"champion:{FOUR}", "--search-ms", "50", "--from", "store"], "records are not searched"),
    ],
)
def test_the_command_line_leaves_out_no_search_that_was_asked_for(server, words, sentence):
    command = [sys.executable, "-m", "sparring", *words, "--data", str(server.data)]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert sentence in done.stderr
