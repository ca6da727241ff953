"""Small talk with a gateway: one chunk, one upload, what is stored."""

from pathlib import Path

import httpx
import msgspec

from derived import chunks_of
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.chunk import Chunk, encode, pack
from sparring.wire.ids import GameId

BINARY = {"Content-Type": "application/x-spar-chunks"}


def post(http, chunks, game="cartpole", **headers):
    """Upload chunks; a bytes object is sent as it is."""
    body = chunks if isinstance(chunks, bytes) else pack([encode(chunk) for chunk in chunks])
    return http.post(f"/v1/games/{game}/chunks", content=body, headers={**BINARY, **headers})


def one_chunk(number, **header):
    """A whole short episode as one chunk, without a player."""
    (chunk,) = chunks_of(7, 1, number, steps=5, chunk_steps=5, player=None)
    return Chunk(msgspec.structs.replace(chunk.header, **header), chunk.columns)


def stored(data: Path, game="cartpole"):
    """Every chunk in a gateway's store."""
    with open_store(f"sqlite:///{data}/experience.db", check=False) as store:
        return list(store.read(Query(GameId(game))))


def player_token(url, key, player, game="cartpole"):
    """The Authorization header of a new token for that player."""
    asked = {"json": {"player": player}, "headers": {"Authorization": f"Bearer {key}"}}
    token = httpx.post(f"{url}/v1/games/{game}/tokens", **asked).raise_for_status().json()["token"]
    return {"Authorization": f"Bearer {token}"}
