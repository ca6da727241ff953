"""Recorded chunks to change and to check: real play of the built-in games."""

from typing import Any

import msgspec
import numpy as np

from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.wire.chunk import Array, Chunk


def episode(game_id: str, *names: str, seed: int = 1) -> list[Chunk]:
    """The chunks of one episode, played by scripts."""
    players = [script(game_id, name) for name in names]
    return play(open_game(game_id), players, [seed], np.random.default_rng(0))[0]


def with_header(chunk: Chunk, **fields: Any) -> Chunk:
    """The chunk with other header fields."""
    return Chunk(msgspec.structs.replace(chunk.header, **fields), chunk.columns)


def with_columns(chunk: Chunk, **columns: Array | None) -> Chunk:
    """The chunk with other columns; None removes one, and "__" in a name stands for "/"."""
    changed = dict(chunk.columns)
    for name, array in columns.items():
        if array is None:
            del changed[name.replace("__", "/")]
        else:
            changed[name.replace("__", "/")] = array
    return Chunk(chunk.header, changed)


def with_entry(chunk: Chunk, column: str, place: tuple[int, ...], value: float) -> Chunk:
    """The chunk with one number changed."""
    array = chunk.columns[column].copy()
    array[place] = value
    return Chunk(chunk.header, {**chunk.columns, column: array})
