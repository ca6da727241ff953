"""A game that plays with the gateway's champion, in a process of its own: URL TRUST FOLDER EPISODES.

It has no configuration and no credentials: what it knows of S3 is the address that the gateway sends it to.
"""

import json
import statistics
import sys

import sparring
from sparring.client.mock_players import MockPlayer, play
from sparring.games.catalogue import open_game

SEED = 6_021  # no game that anybody recorded


def main(url: str, trust: str, folder: str, episodes: str) -> None:
    game = open_game("cartpole")
    with sparring.connect(url, "cartpole", "tester", trust=trust, folder=folder, strength=1.0, seed=SEED) as connection:
        model = connection.wait_for_model(60.0)
        player = MockPlayer(connection, None)
        lengths = [play(game, [player], number, SEED) for number in range(int(episodes))]  # a step earns 1
        sent = connection.flush(60.0)
    said = {"model": model, "mean": statistics.fmean(lengths), "steps": sum(lengths), "sent": sent}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
