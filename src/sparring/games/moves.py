"""Refusing a move that a game does not know, before it touches the game."""

import numpy as np

from sparring.errors import Refused
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array


def discrete_moves(spec: GameSpec, seat: int, action: Array, acting: Array, legal: Array | None = None) -> Array:
    """int64 [n]: the actions of the games where `acting`, 0 elsewhere; Refused where one is no choice or not legal."""
    choices = spec.seats[seat].action.choices[0]
    if np.shape(action) != acting.shape:
        raise _refused(spec, seat, f"actions of shape {np.shape(action)}", f"Give one for each of {len(acting)} games")
    moves = np.where(acting, action, 0).astype(np.int64)
    wrong = (moves < 0) | (moves >= choices)
    if wrong.any():
        row = int(wrong.argmax())
        raise _refused(spec, seat, f"action {moves[row]} in game {row}", f"Choose from 0 to {choices - 1}")
    if legal is not None and not (taken := legal[np.arange(len(moves)), moves] | ~acting).all():
        row = int((~taken).argmax())
        allowed = ", ".join(map(str, np.flatnonzero(legal[row])))
        raise _refused(spec, seat, f"action {moves[row]} in game {row} is not legal", f"Choose from {allowed}")
    return moves


def _refused(spec: GameSpec, seat: int, wrong: str, do: str) -> Refused:
    return Refused(wrong, where=f"{spec.id}, seat {seat}", do=do, field="action")
