"""A playthrough: a seed, the actions, and a fingerprint of everything that the game showed at each tick."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from sparring.games.catalogue import open_game
from sparring.games.protocol import View

Chooser = Callable[[View], Sequence[np.ndarray]]


def shown(view: View) -> bytes:
    """All that row 0 shows, in the order that playthrough.mjs writes it too."""
    parts = [view.tick[0].astype("<i8").tobytes()]
    for seat in range(view.to_act.shape[1]):
        parts += [view.observation[seat][name][0].tobytes() for name in view.observation[seat]]
        legal = view.legal[seat]
        parts += [] if legal is None else [legal[0].astype(np.uint8).tobytes()]
        parts += [view.reward[0, seat].astype("<f4").tobytes(), view.outcome[0, seat].astype("<f4").tobytes()]
        parts.append(bytes([int(view.ending[0, seat]), int(view.to_act[0, seat])]))
    return b"".join(parts)


def playthrough(game_id: str, seed: int, choose: Chooser, ticks: int = 1 << 20) -> dict:
    """Play one game to its end by `choose`."""
    game = open_game(game_id)
    view = game.reset(np.array([seed], np.uint64), np.ones(1, bool))
    actions: list[str] = []
    marks = [hashlib.sha256(shown(view)).hexdigest()[:12]]
    while not view.over[0] and len(actions) < ticks:
        chosen = choose(view)
        actions.append("".join(str(int(action[0])) for action in chosen))
        view = game.step(chosen)
        marks.append(hashlib.sha256(shown(view)).hexdigest()[:12])
    # The seed is text: JavaScript's numbers end at 2^53.
    return {"game": game_id, "seed": str(seed), "actions": actions, "marks": marks, "last": shown(view).hex()}


def replayed(recorded: dict) -> dict:
    """The same playthrough again, from its seed and actions."""
    rows = iter(recorded["actions"])

    def choose(view: View) -> Sequence[np.ndarray]:
        return [np.array([int(digit)]) for digit in next(rows)]

    return playthrough(recorded["game"], int(recorded["seed"]), choose, len(recorded["actions"]))
