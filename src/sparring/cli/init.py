"""Write a first spar.toml and a spec for your own game, and check both with a first chunk.

Writes `spar.toml`, `games/GAME.toml` and `record.py` (a few lines that record play) into the folder; never over an
existing file. Then it makes a chunk that fits the spec and checks it as the gateway will; with `--to URL` it uploads
that chunk to a running server. Example: spar init my-game --features 8 --actions 4
"""

import argparse
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from sparring.cli.output import Output, token_argument
from sparring.client.gateway import Gateway
from sparring.errors import ConfigError
from sparring.games.chunk_checks import check_chunk
from sparring.games.cutter import cut
from sparring.games.spec import GameSpec, read
from sparring.games.step_buffer import Behaviour, StepBuffer, layout_of
from sparring.wire.chunk import Chunk, decode, encode
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
    token_argument(parser, "an API key for --to")


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
    layout = layout_of(spec, 0)
    buffer = StepBuffer(layout.header(new_episode(), "import"), layout)
    low, high = layout.seat.reward_bounds
    seen = {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in layout.seat.observation}
    action = np.zeros(layout.action.shape, layout.action.dtype)
    for _ in range(4):
        buffer.write(seen, action, max(low, min(0.0, high)), tick=None, legal=None, by=Behaviour("script:init"))
    buffer.end(seen, terminated=False, outcome=None)
    (chunk,) = cut(buffer, due=True)
    return decode(encode(chunk))


def _upload(args: argparse.Namespace, chunk: Chunk, output: Output) -> str:
    with closing(Gateway(args.to, chunk.header.game, args.token, 5.0, None)) as gateway:
        gateway.spec()  # says what to do where no gateway is there, or it does not serve the game
        answer = gateway.send([encode(chunk)])
    if not answer.results:
        raise ConfigError(answer.reason, where=args.to, do="Serve with this spar.toml, then try again")
    output.say(f"the server kept it: {answer.results[0].verdict}")
    return answer.results[0].verdict
