"""Everything that one chunk alone can show to be wrong is refused, with field, value and limit."""

import contextlib

import msgspec
import numpy as np
import pytest
from small_chunks import episode, with_columns, with_entry, with_header

from sparring.errors import ChunkRefused, WireError
from sparring.games import cartpole, connect_four, duel
from sparring.games.chunk_checks import check_chunk
from sparring.games.spec import GameSpec, Leaf, SeatSpec, parse
from sparring.wire.chunk import Chunk, decode, encode

CART = episode("cartpole", "random")[0]
FOUR = episode("connect-four", "random", "random")[1]
STATE = "observation/state"
STEPS = CART.header.steps


def refusal(chunk: Chunk, spec: GameSpec) -> ChunkRefused:
    with pytest.raises(ChunkRefused) as caught:
        check_chunk(chunk, spec)
    return caught.value


@pytest.mark.parametrize(
    ("spec", "players"),
    [
        (cartpole.SPEC, ["random"]),
        (connect_four.SPEC, ["tactical", "random"]),
        (duel.SPEC, ["tracker", "random"]),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
def test_real_play_passes_also_after_its_way_over_the_wire(spec: GameSpec, players: list[str]) -> None:
    for seed in range(5):
        for chunk in episode(spec.id, *players, seed=seed):
            check_chunk(chunk, spec)
            check_chunk(decode(encode(chunk)), spec)


HEADERS = [
    ({"game": "duel"}, "game"),
    ({"version": "2"}, "version"),
    ({"spec": "0" * 64}, "spec"),
    ({"seat": 1}, "seat"),
    ({"seat": -1}, "seat"),
    ({"steps": 0}, "steps"),
    ({"steps": 513}, "steps"),
    ({"steps": STEPS - 1}, STATE),
    ({"first_step": -1}, "first_step"),
    ({"first_step": 3}, "tick"),
    ({"episode": "x"}, "episode"),
    ({"episode": "0190b3f0-0000-4000-8000-000000000000"}, "episode"),
    ({"actor": "model:abc"}, "actor"),
    ({"actor": "Person"}, "actor"),
    ({"actor": "script:"}, "actor"),
    ({"actor": "person\n"}, "actor"),
    ({"sample_rate": 0.0}, "sample_rate"),
    ({"sample_rate": 1.5}, "sample_rate"),
    ({"sample_rate": float("nan")}, "sample_rate"),
    ({"seed": -1}, "seed"),
    ({"seed": 1 << 64}, "seed"),
    ({"outcome": float("inf")}, "outcome"),
    ({"ending": "running"}, "outcome"),
]


@pytest.mark.parametrize(("fields", "field"), HEADERS, ids=lambda value: str(value))
def test_a_header_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    assert refusal(with_header(CART, **fields), cartpole.SPEC).field == field


@pytest.mark.parametrize("actor", ["person", "model:" + "a" * 64, "script:random", "script:my-bot_2.1"])
def test_everyone_who_may_act_is_accepted(actor: str) -> None:
    check_chunk(with_header(CART, actor=actor), cartpole.SPEC)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [STATE, "reward", f"final_{STATE}"])
def test_a_number_that_is_none_is_refused(column: str, value: float) -> None:
    place = (2,) if column != STATE else (2, 1)
    assert refusal(with_entry(CART, column, place, value), cartpole.SPEC).field == column


@pytest.mark.parametrize(
    ("column", "place", "value", "field"),
    [
        ("action", (0,), 2, "action"),
        ("action", (0,), -1, "action"),
        ("reward", (3,), 1.5, "reward"),
        ("reward", (3,), -0.1, "reward"),
        ("tick", (1,), 0, "tick"),
        ("tick", (STEPS - 1,), 501, "tick"),
        ("tick", (0,), -1, "tick"),
    ],
)
def test_a_value_out_of_bounds_is_refused(column: str, place: tuple[int, ...], value: float, field: str) -> None:
    assert refusal(with_entry(CART, column, place, value), cartpole.SPEC).field == field


def test_a_column_is_missing_unknown_or_of_another_kind() -> None:
    assert refusal(with_columns(CART, reward=None), cartpole.SPEC).field == "reward"
    assert refusal(with_columns(CART, observation__state=None), cartpole.SPEC).field == STATE
    assert refusal(with_columns(CART, extra=np.zeros(STEPS)), cartpole.SPEC).field == "extra"
    assert refusal(with_columns(CART, reward=np.zeros(STEPS)), cartpole.SPEC).field == "reward"
    assert refusal(with_columns(CART, action=np.zeros(STEPS, np.int64)), cartpole.SPEC).field == "action"
    assert refusal(with_columns(CART, tick=np.arange(STEPS, dtype=np.int32)), cartpole.SPEC).field == "tick"
    assert refusal(with_columns(CART, action=np.zeros((STEPS, 1), np.int32)), cartpole.SPEC).field == "action"
    many = {f"state/{i}": np.zeros(1, np.float32) for i in range(64)}
    assert refusal(Chunk(CART.header, {**CART.columns, **many}), cartpole.SPEC).field == "columns"


def test_the_last_view_belongs_to_the_end() -> None:
    assert refusal(with_columns(CART, final_observation__state=None), cartpole.SPEC).field == f"final_{STATE}"
    running = with_header(CART, ending="running", outcome=None)
    check_chunk(running, cartpole.SPEC)  # what came after the last step may be sent early
    check_chunk(with_columns(running, final_observation__state=None), cartpole.SPEC)
    wrong = with_columns(CART, final_observation__state=np.zeros(5, np.float32))
    assert refusal(wrong, cartpole.SPEC).field == f"final_{STATE}"


def test_a_log_probability_is_at_most_zero() -> None:
    check_chunk(with_columns(CART, behaviour_logp=np.full(STEPS, 1e-6, np.float32)), cartpole.SPEC)
    for value in (0.1, np.nan, -np.inf):
        wrong = with_columns(CART, behaviour_logp=np.full(STEPS, value, np.float32))
        assert refusal(wrong, cartpole.SPEC).field == "behaviour_logp"


def test_an_action_outside_of_its_mask_is_refused() -> None:
    legal = FOUR.columns["legal"].copy()
    legal[1, FOUR.columns["action"][1]] = 0
    assert refusal(with_columns(FOUR, legal=legal), connect_four.SPEC).field == "action"
    legal = FOUR.columns["legal"] * np.uint8(2)
    assert refusal(with_columns(FOUR, legal=legal), connect_four.SPEC).field == "legal"
    assert refusal(with_columns(FOUR, legal=legal[:, :6]), connect_four.SPEC).field == "legal"


def test_the_state_of_a_recurrent_actor_is_finite() -> None:
    check_chunk(with_columns(CART, state__h=np.ones(8, np.float32)), cartpole.SPEC)
    assert refusal(with_columns(CART, state__h=np.full(8, np.nan, np.float32)), cartpole.SPEC).field == "state/h"


@pytest.mark.parametrize(
    ("chunk", "spec", "sentence"),
    [
        (
            with_entry(CART, "action", (0,), 7),
            cartpole.SPEC,
            "chunk, action: a value is out of bounds (7, the limit is [0, 1]). Send what the spec allows.",
        ),
        (
            with_entry(CART, STATE, (0, 0), np.nan),
            cartpole.SPEC,
            "chunk, observation/state: it is no number ('nan', the limit is 'finite numbers'). Send finite ones.",
        ),
        (
            with_entry(CART, "tick", (4,), 3),
            cartpole.SPEC,
            "chunk, tick: step 4 does not come after the one before (3, the limit is 3). Let it rise.",
        ),
        (
            with_header(CART, actor="me"),
            cartpole.SPEC,
            "chunk, actor: nobody acts under that name ('me', the limit is 'person, model:SHA-256 or script:NAME'). "
            "Say who chose the actions.",
        ),
        (
            with_columns(CART, rewards=np.zeros(STEPS, np.float32)),
            cartpole.SPEC,
            "chunk, rewards: there is no such column. Did you mean 'reward'?",
        ),
        (
            with_columns(CART, final_observation__state=None),
            cartpole.SPEC,
            "chunk, final_observation/state: it is missing and the episode is terminated. "
            "Send what the seat saw at the end.",
        ),
        (
            with_entry(FOUR, "observation/board", (0, 0, 0, 0), 2),
            connect_four.SPEC,
            "chunk, observation/board: a value is out of bounds (2, the limit is [0, 1]). Send what the spec allows.",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_refusal_says_what_where_and_what_to_do(chunk: Chunk, spec: GameSpec, sentence: str) -> None:
    assert str(refusal(chunk, spec)) == sentence


def test_a_refusal_can_be_written_as_json() -> None:
    for chunk in (with_entry(CART, "action", (0,), 7), with_entry(CART, STATE, (0, 0), np.inf)):
        error = refusal(chunk, cartpole.SPEC)
        msgspec.json.encode([error.field, error.value, error.limit])


ARENA = parse(
    """
    id = "arena"
    turns = "simultaneous"
    max_ticks = 1000
    [[seats]]
    name = "fighter"
    reward_bounds = [-0.1, 0.1]
    action = { name = "action", kind = "multi-discrete", shape = [2], dtype = "int8", choices = [3, 5] }
    observation = [
        { name = "observation/foes", kind = "entities", shape = [4, 2] },
        { name = "observation/foes/count", kind = "vector", shape = [1], dtype = "uint8" },
        { name = "observation/mood", kind = "discrete", dtype = "uint8", choices = [3] },
        { name = "observation/light", kind = "vector", shape = [1], low = 0.1, high = 0.3 },
    ]
    """
)


def arena(**columns: np.ndarray) -> Chunk:
    """Two steps of a game with every other kind of leaf."""
    plain = {
        "observation/foes": np.zeros((2, 4, 2), np.float32),
        "observation/foes/count": np.array([[0], [4]], np.uint8),
        "observation/mood": np.array([0, 2], np.uint8),
        "observation/light": np.array([[0.1], [0.3]], np.float32),  # whose float32 lie just outside
        "action": np.array([[2, 4], [0, 0]], np.int8),
        "reward": np.array([0.1, -0.1], np.float32),
        "tick": np.array([0, 5], np.int64),
    }
    header = msgspec.structs.replace(
        CART.header, game="arena", spec=ARENA.hash, steps=2, ending="running", outcome=None
    )
    return with_columns(Chunk(header, plain), **columns)


def test_entities_multi_discrete_and_rounded_bounds() -> None:
    check_chunk(arena(), ARENA)
    check_chunk(arena(legal=np.ones((2, 8), np.uint8)), ARENA)
    assert refusal(arena(action=np.array([[3, 0], [0, 0]], np.int8)), ARENA).field == "action"
    assert refusal(arena(action=np.array([[0, -1], [0, 0]], np.int8)), ARENA).limit == [0, 4]
    assert refusal(arena(observation__foes__count=np.array([[5], [0]], np.uint8)), ARENA).limit == 4
    assert refusal(arena(observation__mood=np.array([0, 3], np.uint8)), ARENA).value == 3
    assert refusal(arena(observation__light=np.array([[0.1], [0.31]], np.float32)), ARENA).field == "observation/light"
    masked = np.ones((2, 8), np.uint8)
    masked[0, 3 + 4] = 0  # the second entry's fifth choice
    assert refusal(arena(legal=masked), ARENA).value == [2, 4]


def test_a_density_may_exceed_one() -> None:
    box = SeatSpec(
        name="arm",
        observation=(Leaf(name="observation/x", kind="vector", shape=(1,)),),
        action=Leaf(name="action", kind="box", shape=(1,)),
        reward_bounds=(0, 0),
    )
    spec = GameSpec(id=CART.header.game, turns="simultaneous", seats=(box,), max_ticks=9)
    columns = {
        "observation/x": np.zeros((1, 1), np.float32),
        "action": np.zeros((1, 1), np.float32),
        "reward": np.zeros(1, np.float32),
        "tick": np.zeros(1, np.int64),
        "behaviour_logp": np.ones(1, np.float32),
    }
    header = msgspec.structs.replace(CART.header, spec=spec.hash, steps=1, ending="running", outcome=None)
    check_chunk(Chunk(header, columns), spec)
    assert refusal(with_columns(Chunk(header, columns), legal=np.ones((1, 1), np.uint8)), spec).field == "legal"


def test_damaged_chunks_are_refused_and_never_crash_the_check() -> None:
    rng, refused = np.random.default_rng(0), 0
    for chunk, spec in ((CART, cartpole.SPEC), (FOUR, connect_four.SPEC)):
        packed = encode(chunk)
        raw = decode(packed)
        for _ in range(300):
            name = list(raw.columns)[rng.integers(len(raw.columns))]
            array = raw.columns[name].copy()
            noise = array.reshape(-1).view(np.uint8)
            noise[rng.integers(len(noise))] ^= np.uint8(1 << rng.integers(8))
            try:
                check_chunk(Chunk(raw.header, {**raw.columns, name: array}), spec)
            except ChunkRefused as error:
                msgspec.json.encode([error.field, error.value, error.limit])
                refused += 1
        for _ in range(300):
            damaged = bytearray(packed)
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
            with contextlib.suppress(WireError, ChunkRefused):
                check_chunk(decode(bytes(damaged)), spec)
    assert refused > 50
