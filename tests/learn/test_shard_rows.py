"""How many steps a shard of replay holds."""

from dataclasses import replace

from sparring.learn.plan import TrainRequest, plan
from sparring.learn.replay.local import memory_numbers
from sparring.learn.replay.sharded import rows_of_a_shard
from sparring.learn.topologies.apex import block_spec
from sparring.replay.rows import row_layout


def test_bytes_bound_all_shards_together_and_what_a_memory_held_counts(config):
    replay = replace(config.replay, shards=2, capacity_bytes=1_000_000)
    planned = plan(TrainRequest("cartpole", "r2d2", topology="apex"), replace(config, replay=replay))
    part = block_spec(planned, planned.algorithm.begin(planned.spec, planned.settings, 0))
    numbers, seat = memory_numbers(planned, part.network), planned.spec.seats[0]
    assert numbers > 0
    size = row_layout(seat, masks=seat.action.masks > 0, state_numbers=numbers).itemsize
    assert rows_of_a_shard(planned, part) == 1_000_000 // size // 2
