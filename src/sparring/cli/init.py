"""Write a first spar.toml and a spec for your own game, and check both with a first chunk.

Writes `spar.toml`, `games/GAME.toml` and `record.py` (a few lines that record play) into the folder; never over an
existing file. Then it makes a chunk that fits the spec and checks it as the gateway will; with `--to URL` it uploads
that chunk to a running server. Example: spar init my-game --features 8 --actions 4
"""

import argparse
import re
from pathlib import Path
from typing import Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Unreachable
from sparring.games.chunk_checks import check_chunk
from sparring.games.spec import GameSpec, read
from sparring.wire.chunk import Chunk, Header, decode, encode, pack
from sparring.wire.ids import new_episode

SPEC = """\
# What one seat of {game} sees and does. docs/games.md explains every key.
id = "{game}"
version = "1"                 # raise it with every patch that changes how the game plays
turns = "simultaneous"        # or "alternating"
max_ticks = 10000             # the longest episode, by the game's own clock

[[seats]]
name = "player"
reward_bounds = [-1.0, 1.0]   # of one step; an upload outside is refused

[[seats.observation]]         # one block for each array that the player sees
name = "observation/state"
kind = "vector"               # or image, entities, box, discrete, multi-discrete
shape = [{features}]
dtype = "float32"

[seats.action]
name = "action"
kind = "discrete"
dtype = "int32"
choices = [{actions}]
"""

TOML = """\
# Every key and its default: docs/settings.md. `spar doctor` looks at the result.
data = "data"
games = ["games/{game}.toml"]

[gateway]
port = 8700
"""

RECORD = '''\
"""Record play of {game}: start `spar serve` beside spar.toml, then run this file."""

import numpy as np

import sparring

with sparring.connect("http://127.0.0.1:8700", game="{game}", player="alice") as game, game.episode() as episode:
    observation = np.zeros({features}, np.float32)
    for _ in range(100):
        action = episode.act(observation)  # the newest bot; a uniform choice until there is one
        episode.record(observation, action, reward=0.0)
    episode.end(observation, terminated=True)
'''


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", metavar="GAME", help="its id: lower-case letters, digits and dashes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where to write (default: here)")
    parser.add_argument("--features", type=int, default=8, metavar="N", help="numbers that a player sees (default: 8)")
    parser.add_argument("--actions", type=int, default=4, metavar="N", help="choices that a player has (default: 4)")
    parser.add_argument("--to", metavar="URL", help="also upload the first chunk to this server")
    parser.add_argument("--token", help="API key for --to")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", args.game):
        raise ConfigError(f"{args.game!r} is no id", where="GAME", do="Use lower-case letters, digits and dashes")
    files = {
        args.folder / "spar.toml": TOML,
        args.folder / "games" / f"{args.game}.toml": SPEC,
        args.folder / "record.py": RECORD,
    }
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{', '.join(there)} is there already", where="spar init", do="Choose another --folder")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(game=args.game, features=args.features, actions=args.actions))
        output.say(f"wrote {path}")
    spec = read(args.folder / "games" / f"{args.game}.toml")
    chunk = _first_chunk(spec)
    check_chunk(chunk, spec)
    steps = chunk.header.steps
    output.say(f"a chunk of {steps} steps fits the spec and passes every check")
    verdict = _upload(args, chunk, output) if args.to else None
    output.say(f"next: cd {args.folder} && spar serve, then python record.py")
    return {"files": [str(path) for path in files], "steps_checked": steps, "verdict": verdict}


def _first_chunk(spec: GameSpec) -> Chunk:
    """Four steps of zeros that fit the spec, through the encoder and back."""
    import numpy as np

    seat, steps = spec.seats[0], 4
    columns = {leaf.name: np.zeros((steps, *leaf.shape), leaf.dtype) for leaf in (*seat.observation, seat.action)}
    columns["reward"] = np.full(steps, max(seat.reward_bounds[0], min(0.0, seat.reward_bounds[1])), np.float32)
    columns["tick"] = np.arange(steps, dtype=np.int64)
    columns |= {f"final_{leaf.name}": np.zeros(leaf.shape, leaf.dtype) for leaf in seat.observation}
    header = Header(
        game=spec.id,
        version=spec.version,
        spec=spec.hash,
        episode=new_episode(),
        seat=0,
        first_step=0,
        steps=steps,
        actor="script:init",
        source="import",
        ending="truncated",
    )
    return decode(encode(Chunk(header, columns)))


def _upload(args: argparse.Namespace, chunk: Chunk, output: Output) -> str:
    import httpx

    headers = {"Content-Type": "application/x-spar-chunks"}
    if args.token:
        headers["Authorization"] = f"Bearer {args.token}"
    try:
        url = f"{args.to.rstrip('/')}/v1/games/{chunk.header.game}/chunks"
        answer = httpx.post(url, content=pack([encode(chunk)]), headers=headers)
    except httpx.HTTPError as error:
        raise Unreachable(str(error), where=args.to, do="Start `spar serve` there, with this spar.toml") from None
    said = answer.json()
    if answer.status_code != 200:
        wrong = said.get("error", {}).get("message", answer.text)
        raise ConfigError(wrong, where=args.to, do="Serve with this spar.toml, then try again")
    output.say(f"the server kept it: {said['results'][0]['verdict']}")
    return str(said["results"][0]["verdict"])
