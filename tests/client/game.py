"""A game as a process of its own: plays CartPole for ever, and says how much is spooled. Run by tests that kill it."""

import sys

import sparring
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.games.catalogue import open_game

url, folder, first, episodes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with sparring.connect(url, "cartpole", folder=folder, flush_every_s=0.05, retry_most_s=0.2, timeout_s=10.0) as game:
    player = MockPlayer(game, script_of("random", game.spec))
    for number in range(first, first + episodes):
        play(open_game("cartpole"), [player], number, 11)
        sys.stdout.write(f"{game.statistics().chunks}\n")
        sys.stdout.flush()
    sys.stdout.write("arrived\n" if game.flush(120.0) else "missing\n")
