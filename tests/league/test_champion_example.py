"""examples/connect-four-champion: the facts that its network is given, and the league that learns with it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from bench.champion import EXAMPLE, set_up

from sparring.games.catalogue import open_game
from sparring.registry.file import FileRegistry


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import four_lines

    return four_lines.Lines()


def drop(board: np.ndarray, player: int, column: int) -> np.ndarray:
    """The board [2, 6, 7] with one stone more."""
    after = board.copy()
    after[player, 5 - int(board[:, :, column].sum()), column] = 1
    return after


def has_four(stones: np.ndarray) -> bool:
    """By looking at every line from every cell."""
    ways = ((0, 1), (1, 0), (1, 1), (-1, 1))
    cells = {(int(r), int(c)) for r, c in np.argwhere(stones)}
    return any(all((r + k * down, c + k * right) in cells for k in range(4)) for r, c in cells for down, right in ways)


def test_what_can_be_won_at_once_and_after_a_stone_below_is_what_playing_it_shows(lines):
    rng, checked = np.random.default_rng(3), set()
    game = open_game("connect-four", 100)
    view = game.reset(np.zeros(100, np.uint64), np.ones(100, bool))
    for tick in range(30):
        boards = view.observation[tick % 2]["observation/board"]
        by_column = lines(torch.from_numpy(boards).float())[:, -28:].reshape(-1, 2, 2, 7).numpy()
        for row in np.flatnonzero(~view.over):
            for player in (0, 1):
                for column in range(7):
                    room = 6 - int(boards[row][:, :, column].sum())
                    wins = room > 0 and has_four(drop(boards[row], player, column)[player])
                    above = drop(drop(boards[row], 1 - player, column), player, column) if room > 1 else None
                    later = above is not None and has_four(above[player])
                    assert by_column[row, :, player, column].tolist() == [wins, later]
                    checked |= {("now", wins), ("later", later)}
        legal = view.legal[tick % 2]
        moves = (rng.random((100, 7)) * legal).argmax(axis=1).astype(np.int32)
        view = game.step([moves, moves])
    assert len(checked) == 4


@pytest.mark.slow
def test_the_league_of_the_example_publishes_what_plays_without_its_code(tmp_path):
    set_up(tmp_path)
    quick = (
        (tmp_path / "league.toml")
        .read_text()
        .replace("[main]", "[main]\nfreeze_every_steps = 20_000\nleast_steps = 8_000")
    )
    (tmp_path / "league.toml").write_text(quick)
    words = [sys.executable, "-m", "sparring", "league", "connect-four", "--for", "40s", "--data", "data"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=300)
    models = FileRegistry(tmp_path / "data" / "models").models("connect-four")
    assert models
    assert all(one.card.network.module is not None for one in models)
    (tmp_path / "four_lines.py").unlink()
    words = [sys.executable, "-m", "sparring", "evaluate", models[0].card.id, "--episodes", "20", "--data", "data"]
    subprocess.run([*words, "--against", "random"], cwd=tmp_path, check=True, timeout=120)
