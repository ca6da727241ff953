"""Whole columns of vectorised games at once: cut into episodes that run again, or refused before a step is kept."""

import numpy as np
import pytest

from sparring.errors import ChunkRefused
from sparring.games.catalogue import open_game, spec_of
from sparring.games.resimulation import resimulate


@pytest.mark.parametrize("game", ["cartpole", "connect-four"])
def test_record_many_stores_episodes_that_run_again(peer, connect, game):
    """Vectorised games with automatic resets, in calls of 7 rows that cut across episodes."""
    connection = connect(peer.url, game=game)
    spec, n, rng = spec_of(game), 4, np.random.default_rng(3)
    played, seeds = open_game(game, n), np.arange(n).astype(np.uint64)
    view = played.reset(seeds, np.ones(n, bool))
    following = n
    for _ in range(12):
        rows = [[] for _ in spec.seats]
        for _ in range(7):
            legal = view.legal
            actions = []
            for s in range(len(spec.seats)):
                mask = np.ones((n, spec.seats[s].action.masks), bool) if legal[s] is None else legal[s]
                actions.append((np.where(mask, rng.random(mask.shape), -1)).argmax(1).astype(np.int32))
            before, started = view, seeds.copy()
            view = played.step(actions)
            over = view.over
            for s in range(len(spec.seats)):
                row = dict(before.observation[s])
                row |= {f"final_{name}": array for name, array in view.observation[s].items()}
                row |= {"action": actions[s], "reward": view.reward[:, s], "tick": before.tick, "seed": started}
                row |= {"acts": before.to_act[:, s], "outcome": view.outcome[:, s]}
                row |= {"ending": np.where(over, view.ending[:, s], 0)}
                if legal[s] is not None:
                    row["legal"] = legal[s].astype(np.uint8)
                rows[s].append(row)
            if over.any():
                seeds[over] = np.arange(following, following + over.sum())
                following += int(over.sum())
                view = played.reset(seeds, over)
        for s, columns in enumerate(rows):
            stacked = {name: np.stack([row[name] for row in columns]) for name in columns[0]}
            connection.record_many(stacked, seat=s, group="all")
    connection.close(5.0)
    by_episode = {}
    for chunk in peer.kept.values():
        by_episode.setdefault(chunk.header.episode, []).append(chunk)
    ended = [chunks for chunks in by_episode.values() if all(_ends(chunks, s) for s in range(len(spec.seats)))]
    assert len(ended) >= 4
    for chunks in ended:
        assert resimulate(chunks, open_game(game)).mismatches == ()


def _ends(chunks, seat):
    return any(chunk.header.seat == seat and chunk.header.ending == "terminated" for chunk in chunks)


def test_record_many_refuses_before_it_records(peer, connect):
    connection = connect(peer.url)
    good = {
        "state": np.zeros((3, 2, 4), np.float32),
        "action": np.zeros((3, 2), np.int32),
        "reward": np.ones((3, 2), np.float32),
    }
    for name, value in {
        "state": np.full((3, 2, 4), np.nan, np.float32),
        "action": np.full((3, 2), 2),
        "reward": np.full((3, 2), 1e9, np.float32),
        "ending": np.ones((3, 2), np.uint8),
        "unknown": np.ones((3, 2)),
        "tick": np.ones((3, 3), np.int64),
    }.items():
        with pytest.raises(ChunkRefused):
            connection.record_many(good | {name: value})
    connection.record_many(good)
    connection.close(5.0)
    assert sum(chunk.header.steps for chunk in peer.kept.values()) == 4  # two games, the last decision of each left
