"""Ids, specs in TOML, and the commands: what is there is found, what is not is named."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparring.cli import main
from sparring.config import load
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import BUILT_IN, Catalogue, open_game, spec_of
from sparring.games.spec import GameSpec, parse

PAGE = (Path(__file__).parents[2] / "docs" / "games.md").read_text()
(ARENA,) = (block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.S) if "[[seats]]" in block)
CORRIDOR, COUNTDOWN = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_spec_in_the_documentation_is_whole() -> None:
    spec = parse(ARENA)
    assert (spec.id, spec.version, spec.turns, len(spec.seats)) == ("arena", "1.4", "simultaneous", 2)
    assert spec.seats[0].action.choices == (9, 4)
    assert spec.seats[1].observation[0].shape == (1, 42, 42)


def test_the_game_in_the_documentation_keeps_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "countdown.py").write_text(COUNTDOWN)
    monkeypatch.chdir(tmp_path)
    assert main(["games", "check", "countdown:make", "--episodes", "5"]) == 0
    assert "every promise is kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("game_id", "sentence"),
    [
        ("cartpol", "game 'cartpol': there is no such game. Did you mean 'cartpole'?"),
        (
            "chess960",
            "game 'chess960': there is no such game. "
            "Use one of cartpole, connect-four, duel, atari:GAME, gym:ID, pz:MODULE, spiel:NAME or module:function.",
        ),
        ("spiel:kuhn_pokr", "game 'spiel:kuhn_pokr': OpenSpiel has no such game. Did you mean 'spiel:kuhn_poker'?"),
        (
            "pz:simple_spread_v9",
            "game 'pz:simple_spread_v9': PettingZoo has no such game. Did you mean 'pz:simple_spread_v3'?",
        ),
        ("pz:nowhere:rovers_v0", "game 'pz:nowhere:rovers_v0': there is no module 'nowhere'. Correct its name."),
        ("pz:tictactoe_v9", "game 'pz:tictactoe_v9': PettingZoo has no such game. Did you mean 'pz:tictactoe_v3'?"),
        (
            "gym:CartPoll-v1",
            "game 'gym:CartPoll-v1': Environment `CartPoll` doesn't exist. Did you mean: `CartPole`. "
            "`python -c 'import gymnasium; gymnasium.pprint_registry()'` lists what there is.",
        ),
        (
            "spiel:mfg_garnet",
            "game 'spiel:mfg_garnet': its dynamics are MEAN_FIELD. Use a game of finitely many players.",
        ),
    ],
)
def test_an_unknown_game_is_named_with_what_was_meant(game_id: str, sentence: str) -> None:
    with pytest.raises((Missing, ConfigError)) as caught:
        open_game(game_id)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("game_id", ["", "gym:", "nowhere:make", "sparring.games.catalogue:nothing", "..:x"])
def test_an_id_that_names_nothing_is_missing(game_id: str) -> None:
    with pytest.raises(Missing):
        spec_of(game_id)


@pytest.mark.parametrize(
    ("library", "package", "game_id"),
    [
        ("gymnasium", "gymnasium", "gym:CartPole-v1"),
        ("pettingzoo", "pettingzoo", "pz:rps_v2"),
        ("mpe2.all_modules", "mpe2", "pz:simple_spread_v3"),
        ("pyspiel", "open_spiel", "spiel:kuhn_poker"),
    ],
)
def test_a_library_that_is_not_there_is_named_with_its_extra(
    library: str, package: str, game_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # Python's own way to say: not installed
    with pytest.raises(Missing) as caught:
        open_game(game_id)
    assert caught.value.wrong == f"{package} is not installed"
    assert caught.value.do == 'Install it with: pip install "sparring[games]"'


def test_no_games_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="Open at least one game"):
        open_game("duel", 0)


def test_a_catalogue_knows_the_built_in_games_and_what_the_config_names(tmp_path: Path) -> None:
    (tmp_path / "arena.toml").write_text(ARENA)
    (tmp_path / "newer.toml").write_text(ARENA.replace('"1.4"', '"1.5"').replace("5400", "6000"))
    (tmp_path / "spar.toml").write_text('games = ["arena.toml", "newer.toml", "spiel:kuhn_poker"]')
    # Paths are the config file's, wherever the data folder is.
    known = Catalogue.from_config(load(tmp_path / "spar.toml", ("data=elsewhere/data",)))
    assert [spec.id for spec in known.games()] == [*BUILT_IN, "arena", "arena", "spiel:kuhn_poker"]
    older, newest = known.spec("arena", "1.4"), known.newest("arena")
    assert older is not None
    assert newest is not None
    assert (older.max_ticks, newest.version, newest.max_ticks) == (5400, "1.5", 6000)
    assert known.spec("arena", "1") is None
    assert known.newest("nothing") is None
    assert known.newest("duel") == spec_of("duel")


def test_one_version_of_a_game_has_one_spec(tmp_path: Path) -> None:
    (tmp_path / "arena.toml").write_text(ARENA)
    (tmp_path / "other.toml").write_text(ARENA.replace("5400", "6000"))
    with pytest.raises(ConfigError) as caught:
        Catalogue(("arena.toml", "other.toml"), tmp_path)
    said = "game 'other.toml': arena has version '1.4' already, and it differs. Give the newer spec another version."
    assert str(caught.value) == said
    with pytest.raises(Missing, match="there is no such spec"):
        Catalogue(("nothing.toml",), tmp_path)


def test_a_hash_covers_all_but_the_version() -> None:
    spec, patch = parse(ARENA), parse(ARENA.replace('"1.4"', '"1.5"'))
    assert spec.hash == patch.hash
    assert spec.hash != parse(ARENA.replace("5400", "5401")).hash
    assert len({spec_of(game_id).hash for game_id in BUILT_IN}) == 3


def test_a_seat_that_sees_nothing_of_the_others_is_marked_and_keeps_the_spec_s_hash(tmp_path: Path) -> None:
    marked = ARENA.replace("[[seats]]\n", "[[seats]]\nsees_others = false\n", 1)
    assert parse(marked).hash == parse(ARENA).hash
    (tmp_path / "arena.toml").write_text(marked)
    (tmp_path / "later.toml").write_text(ARENA.replace('"1.4"', '"1.5"'))
    catalogue = Catalogue(("arena.toml", "later.toml"), tmp_path)
    assert catalogue.views("arena") == {"1.4": (False, True), "1.5": (True, True)}
    assert catalogue.views("chess") == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "arena"', 'id = "no spaces"', "id 'no spaces'"),
        ("max_ticks = 5400", "max_ticks = 0", "at least one seat"),
        ("max_ticks = 5400", "maxticks = 5400", "maxticks"),
        ('turns = "simultaneous"', 'turns = "both"', "Invalid enum value 'both'"),
        ("choices = [9, 4]", "choices = [9]", "has 2 entries"),
        ('"observation/self"', '"self"', "leaf 'self'"),
        ('"observation/weapon"', '"observation/self"', "has leaves"),
        ('name = "archer"', 'name = "knight"', "several seats are called 'knight'. Give each seat a name of its own"),
        ('dtype = "uint8", choices = [5]', 'dtype = "float32", choices = [5]', "has dtype 'float32'"),
        ("choices = [9, 4]", "choices = [9, 400]", "has 400 choices in int8"),
        ("shape = [6], low = -1.0", "shape = [6], low = 2.0", "has low 2.0 and high 1.0"),
        ('"observation/foes/count"', '"observation/foes/number"', "leaf 'observation/foes' has no count"),
        ("reward_bounds = [-1.0, 1.0]     #", "reward_bounds = [1.0, -1.0]     #", "has reward_bounds"),
        ("[[seats]]", "[[seats", "Expected"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(old: str, new: str, said: str) -> None:
    assert old in ARENA
    with pytest.raises(ConfigError) as caught:
        parse(ARENA.replace(old, new, 1))
    assert said in str(caught.value)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = main(["games", *words, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_list_shows_every_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "arena.toml").write_text(ARENA)
    (tmp_path / "spar.toml").write_text('games = ["arena.toml"]')
    monkeypatch.chdir(tmp_path)
    code, said = run(capsys, "list")
    assert code == 0
    assert [(row["id"], row["from"]) for row in said["games"]] == [
        ("cartpole", "built in"),
        ("connect-four", "built in"),
        ("duel", "built in"),
        ("arena", "spar.toml"),
    ]
    assert said["games"][3]["actions"] == "9 x 4 choices"


def test_a_check_answers_for_games_specs_and_nonsense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "check", "connect-four", "--episodes", "3")
    assert (code, said["episodes"], said["broken"]) == (0, 3, [])
    (tmp_path / "arena.toml").write_text(ARENA)
    code, said = run(capsys, "check", str(tmp_path / "arena.toml"))
    assert (code, said["game"], said["hash"]) == (0, "arena", parse(ARENA).hash)
    code, said = run(capsys, "check", "conect-four")
    assert (code, said["do"]) == (1, "Did you mean 'connect-four'")
    code, said = run(capsys, "check", str(tmp_path / "nothing.toml"))
    assert (code, said["error"]) == (1, "there is no such file")
    code, said = run(capsys, "check")
    assert (code, said["error"]) == (1, "no game is named")
    code, said = run(capsys, "check", "duel", "--episodes", "0")
    assert (code, said["error"]) == (1, "--episodes 0")


def test_a_broken_promise_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "check", "own_game:greedy", "--episodes", "2")
    assert code == 1
    assert any("outside of its reward_bounds" in sentence for sentence in said["broken"])


def test_equal_specs_have_one_hash_however_they_came_about() -> None:
    leaf = '{name = "observation/a", kind = "vector", shape = [3]'
    text = """
id = "small"
turns = "simultaneous"
max_ticks = 5
[[seats]]
name = "a"
reward_bounds = [0.0, 1.0]
observation = [LEAF}]
action = {name = "action", kind = "discrete", dtype = "int32", choices = [2]}
"""
    short, long = parse(text.replace("LEAF", leaf)), parse(text.replace("LEAF", f'{leaf}, dtype = "float32"'))
    travelled = msgspec.json.decode(msgspec.json.encode(long), type=GameSpec)
    assert short.hash == long.hash == travelled.hash == msgspec.convert(msgspec.to_builtins(long), GameSpec).hash


def test_a_spec_is_hashable_so_that_checks_can_remember_it() -> None:
    assert isinstance(hash(parse(ARENA)), int)
    assert isinstance(parse(ARENA), GameSpec)


OWN_ENVIRONMENT = """
import gymnasium
import numpy as np


class Levers(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(action.sum()), True, False, {}


gymnasium.register("Levers-v0", entry_point="own_levers:Levers")
"""


def test_the_environment_of_the_page_is_a_game_with_options(tmp_path):
    (tmp_path / "my_envs.py").write_text(CORRIDOR)
    command = Path(sys.executable).parent / "spar"
    words = ["games", "check", "gym:my_envs:Corridor-v0(length=4)", "--episodes", "2"]
    done = subprocess.run([command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


OPTIONS = [
    ("gym:FrozenLake-v1(map_name=8x8)", lambda spec: spec.seats[0].observation[0].choices == (64,)),
    ("gym:Pendulum-v1(max_episode_steps=7,g=5)", lambda spec: spec.max_ticks == 7),
    ("gym:LunarLander-v3(continuous=true)", lambda spec: spec.seats[0].action.kind == "box"),
    ("pz:multiwalker_v9(n_walkers=2)", lambda spec: len(spec.seats) == 2),
    ("pz:simple_spread_v3(identity=true)", lambda spec: spec.seats[0].observation[1].choices == (3,)),
]


@pytest.mark.parametrize(("game_id", "fits"), OPTIONS, ids=[game_id for game_id, _ in OPTIONS])
def test_options_in_an_id_reach_the_environment(game_id, fits):
    spec = open_game(game_id, 4).spec
    assert fits(spec)
    assert open_game(spec.id).spec == spec


TEAMS = [
    ("pz:tictactoe_v3", [0, 1]),
    ("pz:pursuit_v5(n_pursuers=3)", [0, 0, 0]),
    ("pz:knights_archers_zombies_v11", [0, 0, 0, 0]),
    ("pz:knights_archers_zombies_v11(teams=kind)", [0, 0, 1, 1]),
    ("pz:knights_archers_zombies_v11(teams=each)", [0, 1, 2, 3]),
    ("pz:simple_spread_v3", [0, 0, 0]),
    ("pz:simple_tag_v3", [0, 0, 0, 1]),
    ("pz:simple_tag_v3(teams=all)", [0, 0, 0, 0]),
    ("pz:simple_tag_v3(teams=adversary_0-agent/adversary)", [0, 1, 1, 0]),
    ("pz:simple_world_comm_v3", [0, 0, 0, 0, 1, 1]),
    ("pz:simple_crypto_v3", [0, 1, 1]),
]


@pytest.mark.parametrize(("game_id", "teams"), TEAMS, ids=[game_id for game_id, _ in TEAMS])
def test_agents_have_the_teams_of_their_game_or_of_its_id(game_id, teams):
    spec = open_game(game_id).spec
    assert [seat.team for seat in spec.seats] == teams
    assert spec.id == game_id


def test_a_spec_in_toml_has_teams():
    teams = [[seat.team for seat in parse(text).seats] for text in (ARENA, ARENA.replace("team = 1", "team = 0"))]
    assert teams == [[0, 1], [0, 0]]


WRONG_OPTIONS = [
    (
        "pz:simple_tag_v3(teams=adversary)",
        r"'agent_0' has no team. Write all, each, kind, or teams such as a-b/c of its",
    ),
    ("pz:simple_tag_v3(teams=adversary/agent/ghost)", "there is no agent 'ghost'"),
    ("pz:simple_tag_v3(teams=adversary-agent/agent)", "'agent' is named twice"),
    ("pz:simple_spread_v3(teams=agent_0-agent_1/agent_2/agent)", "no agent is left for 'agent'"),
    ("pz:simple_tag_v3(teams=all,teams=each)", "option 'teams' is given twice"),
    ("pz:simple_spread_v3(identity=1)", "identity=1. Write identity=true or identity=false"),
    ("gym:CartPole-v1(images=small)", "images=small. Write images=full, or leave it out"),
    ("pz:simple_spread_v3(M=2)", "unexpected keyword argument 'M'"),
    ("gym:FrozenLake-v1(map_nam=8x8)", "unexpected keyword argument 'map_nam'"),
    ("gym:LunarLander-v3(gravity=5)", "gravity .* must be between -12 and 0"),
    ("pz:multiwalker_v9(walkers=2)", "unexpected keyword argument 'walkers'"),
    ("gym:CartPole-v1(5)", r"option '5'. Write NAME\(key=value,key=value\)"),
]


@pytest.mark.parametrize(("game_id", "sentence"), WRONG_OPTIONS)
def test_a_wrong_option_is_refused_with_what_the_environment_says(game_id, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_game(game_id)


def test_an_environment_of_ones_own_is_found_in_the_current_folder(tmp_path):
    (tmp_path / "own_levers.py").write_text(OWN_ENVIRONMENT)
    command = Path(sys.executable).parent / "spar"
    words = ["games", "check", "gym:own_levers:Levers-v0", "--episodes", "2"]
    done = subprocess.run([command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_environment_of_pettingzoo_of_ones_own_is_played_in_teams():
    command, folder = Path(sys.executable).parent / "spar", Path(__file__).parents[1] / "learn"

    def check(game):
        words = ["games", "check", f"pz:dying_agents:{game}", "--episodes", "2"]
        return subprocess.run([command, *words], cwd=folder, capture_output=True, text=True, check=False)

    done = check("dying_v0(teams=scout/tank,unequal=true)")
    assert done.returncode == 0, done.stderr
    assert "seat 1 'scout_1' of team 0" in done.stdout
    assert "seat 2 'tank_0' of team 1" in done.stdout
    assert "Did you mean 'pz:dying_agents:dying_v0'?" in check("dyin_v0").stderr
