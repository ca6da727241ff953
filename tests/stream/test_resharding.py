"""Moves from any number of shards to any other end at equal ranges, and never starve the stream on the way."""

import itertools

import pytest

from sparring.stream.kinesis.admin import SPACE, HashRange, next_count, next_move
from sparring.stream.protocol import Shard, ShardPosition, in_order, readable


def even(shards: int, step: int | None = None) -> list[HashRange]:
    """Equal ranges; with `step` those of a server that rounds the size and gives the rest to the last."""
    firsts = [at * (step or 0) or SPACE * at // shards for at in range(shards)]
    lasts = [first - 1 for first in firsts[1:]] + [SPACE - 1]
    return [HashRange(f"shard-{at}", first, last) for at, (first, last) in enumerate(zip(firsts, lasts, strict=True))]


def moved(ranges: list[HashRange], move: tuple[str, dict[str, str]], names: itertools.count) -> list[HashRange]:
    """What a server makes of a move."""
    held, (operation, given) = {one.shard: one for one in ranges}, move
    if operation == "split_shard":
        one, at = held.pop(given["ShardToSplit"]), int(given["NewStartingHashKey"])
        assert one.first < at <= one.last
        new = [HashRange(f"new-{next(names)}", one.first, at - 1), HashRange(f"new-{next(names)}", at, one.last)]
    else:
        one, other = held.pop(given["ShardToMerge"]), held.pop(given["AdjacentShardToMerge"])
        assert one.last + 1 == other.first
        new = [HashRange(f"new-{next(names)}", one.first, other.last)]
    return [*held.values(), *new]


@pytest.mark.parametrize(("now", "wanted"), [(2, 4), (4, 3), (3, 2), (1, 7), (7, 1), (5, 6), (12, 5), (4, 4)])
def test_moves_lead_to_equal_ranges(now, wanted):
    ranges, names = even(now), itertools.count()
    for _ in range(4 * (now + wanted)):
        move = next_move(ranges, wanted)
        if move is None:
            break
        ranges = moved(ranges, move, names)
        assert min(now, wanted) <= len(ranges) <= now + wanted
    assert len(ranges) == wanted
    assert all(abs((one.last - one.first + 1) / SPACE - 1 / wanted) < 1e-9 for one in ranges)


@pytest.mark.parametrize("shards", [3, 7, 10])
def test_a_server_that_rounds_otherwise_is_left_alone(shards):
    assert next_move(even(shards, SPACE // shards), shards) is None


def test_one_call_goes_at_most_to_twice_or_to_half():
    assert [next_count(now, 10) for now in (1, 2, 4, 8)] == [2, 4, 8, 10]
    assert [next_count(now, 3) for now in (17, 9, 5, 4)] == [9, 5, 3, 3]


def test_shards_are_listed_parents_first_and_forgotten_parents_are_left_out():
    family = [
        Shard("c", ("a", "b")),
        Shard("d", ("gone",)),
        Shard("b", ("z",), closed=True),
        Shard("a", closed=True),
        Shard("z", closed=True),
    ]
    found = in_order(family)
    assert [shard.id for shard in found] == ["a", "d", "z", "b", "c"]
    assert next(shard for shard in found if shard.id == "d").parents == ()


def test_children_are_read_when_all_their_parents_ended():
    family = in_order([Shard("a", closed=True), Shard("b", closed=True), Shard("c", ("a", "b")), Shard("d")])
    end = ShardPosition(ended=True)
    assert [shard.id for shard in readable(family, {})] == ["a", "b", "d"]
    assert [shard.id for shard in readable(family, {"a": end})] == ["b", "d"]
    assert [shard.id for shard in readable(family, {"a": end, "b": end})] == ["c", "d"]
