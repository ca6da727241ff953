import msgspec
import numpy as np

from derived import chunks_of
from sparring.config import Config
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import ChunkRules
from sparring.sink.batch_writer import inflated_record, read_record
from sparring.store.protocol import Quarantined
from sparring.stream.protocol import Placed, Position
from sparring.wire.chunk import Chunk, encode
from sparring.wire.ids import opened_at_ms

AT_MS = 1_750_000_001_234
RULES = ChunkRules(Catalogue.from_config(Config()).games())


def placed(data: bytes, uploader: str = "stream:plays") -> Placed:
    return Placed("shard-0", Position("17"), AT_MS, uploader, data)


def changed(**header: object) -> bytes:
    (chunk,) = chunks_of(1, 1, 1, steps=40)
    return encode(Chunk(msgspec.structs.replace(chunk.header, **header), chunk.columns))


def judged(rules: ChunkRules, one: Placed) -> Chunk | Quarantined:
    read = read_record(rules, one)
    return read if isinstance(read, Quarantined) else inflated_record(rules, one, read)


def refusal(data: bytes) -> Quarantined:
    found = judged(RULES, placed(data))
    assert isinstance(found, Quarantined)
    return found


def test_a_true_chunk_may_be_stored_with_what_the_stream_says_of_it() -> None:
    (chunk,) = chunks_of(1, 1, 1, steps=40, uploader="what the sender claims", received_at_ms=99)
    found = judged(RULES, placed(encode(chunk)))
    assert isinstance(found, Chunk)
    assert (found.header.uploader, found.header.received_at_ms) == ("stream:plays", AT_MS)
    assert found.content_hash() == chunk.content_hash()


def test_bytes_that_are_no_chunk_are_put_aside_with_the_reason() -> None:
    found = refusal(b"nothing of ours")
    assert (found.verdict, found.game, found.episode) == ("wire", "", "")
    assert found.reason == "chunk: it starts with 6e6f7468, not 53504301. Send chunks of format 1."


def test_a_game_or_version_that_is_not_known_here_is_put_aside() -> None:
    assert (refusal(changed(game="chess")).verdict, refusal(changed(game="chess")).field) == ("chunk", "game")
    found = refusal(changed(version="9"))
    assert found.reason == (
        "chunk, version: version '9' is not known here. Send one of 1, or add its spec to `games` in spar.toml."
    )


def test_a_name_in_place_of_a_pseudonym_is_put_aside_and_repeated_nowhere() -> None:
    found = refusal(changed(player="Alice Liddell"))
    assert found.field == "player"
    assert "Alice" not in found.reason


def test_a_chunk_without_a_player_may_be_stored() -> None:
    assert isinstance(judged(RULES, placed(changed(player=None))), Chunk)


def test_what_the_gateway_would_refuse_is_put_aside_with_its_field() -> None:
    (chunk,) = chunks_of(1, 1, 1, steps=40)
    reward = np.array(chunk.columns["reward"])
    reward[3] = np.nan
    found = refusal(encode(Chunk(chunk.header, {**chunk.columns, "reward": reward})))
    assert (found.verdict, found.field) == ("chunk", "reward")
    assert found.episode == chunk.header.episode


def test_flipped_bits_are_always_answered() -> None:
    (chunk,) = chunks_of(1, 1, 1, steps=40)
    whole = encode(chunk)
    rng = np.random.default_rng(5)
    for at in rng.integers(0, len(whole), 200):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        judged(RULES, placed(bytes(damaged)))  # an answer each time, never another exception


def test_an_episode_from_another_time_is_put_aside() -> None:
    opened_ms = opened_at_ms(chunks_of(1, 1, 1)[0].header.episode)
    data = changed()
    late = Placed("shard-0", Position("17"), opened_ms + 40 * 86_400_000, "stream:plays", data)
    rules = ChunkRules(Catalogue.from_config(Config()).games(), keep_days=30)
    found = judged(rules, late)
    assert isinstance(found, Quarantined)
    assert found.field == "episode"
    assert isinstance(judged(RULES, late), Chunk)
    ahead = Placed("shard-0", Position("17"), opened_ms - 2 * 86_400_000, "stream:plays", data)
    assert isinstance(judged(RULES, ahead), Quarantined)
