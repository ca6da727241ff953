"""Writes the golden playthroughs:  .venv/bin/python tests/games/make_golden.py

Run it only when docs/rules.md changes on purpose: a changed file means that recorded play no longer replays.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from playthrough import Chooser, playthrough

from sparring.games.protocol import View
from sparring.games.scripts import script

FOLDER = Path(__file__).parent / "golden"
LARGEST = 2**64 - 1


def by(game_id: str, *names: str) -> Chooser:
    """Scripts, one for each seat; "middle" meets Duel's ball with the middle of the paddle, for ever."""
    rng = np.random.default_rng(7)

    def act(seat: int, name: str, view: View) -> np.ndarray:
        seen = view.observation[seat]
        if name == "middle":
            own, ball = seen["observation/field"][:, 0], seen["observation/field"][:, 3]
            return np.sign(np.round((ball - own) * 4096 / 160)).astype(int) + 1
        return script(game_id, name).act(seat, seen, view.legal[seat], rng)

    def choose(view: View) -> Sequence[np.ndarray]:
        return [act(seat, name, view) for seat, name in enumerate(names)]

    return choose


def columns(order: str) -> Chooser:
    """Connect Four by a list of columns."""
    rest = iter(order)

    def choose(view: View) -> Sequence[np.ndarray]:
        column = np.array([int(next(rest))])
        return [column, column]

    return choose


PLAYTHROUGHS = {
    "cartpole": [
        ("cartpole", 0, by("cartpole", "random")),
        ("cartpole", 12345, by("cartpole", "random")),
        ("cartpole", LARGEST, by("cartpole", "balance")),  # 500 ticks: truncated
    ],
    "connect_four": [
        ("connect-four", 0, by("connect-four", "random", "random")),
        ("connect-four", 1, by("connect-four", "tactical", "tactical")),
        ("connect-four", 2, by("connect-four", "random", "tactical")),
        ("connect-four", 3, columns("600055155220266636513610145243021234433441")),  # a draw
    ],
    "duel": [
        ("duel", 0, by("duel", "random", "random")),
        ("duel", 1, by("duel", "tracker", "random")),
        ("duel", LARGEST, by("duel", "tracker", "tracker")),
        ("duel", 2**63, by("duel", "middle", "middle")),  # nobody misses: truncated
    ],
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, cases in PLAYTHROUGHS.items():
        made = [playthrough(*case) for case in cases]
        (FOLDER / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
