"""A process that appends and says so: `python writer.py URL CLIENT FIRST_EPISODE [EPISODES]`.

One line "ok EPISODE" after each append that returned, "failed SENTENCE" after each that did not.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from derived import chunks_of
from sparring.errors import StoreFailed, Unreachable
from sparring.store import open_store


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(url: str, client: int, first: int, episodes: int) -> None:
    with open_store(url) as store:
        say("open")
        for episode in range(first, first + episodes):
            try:
                kept = store.append(chunks_of(5, client, episode))
            except (StoreFailed, Unreachable) as error:
                say("failed", error)
                continue
            say("ok" if all(one.verdict in ("new", "had") for one in kept) else "refused", episode)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1_000_000)
