"""Play against a model: Connect Four here in the terminal, the other games in the browser.

Keys 1 to 7 drop a disc, q leaves. No server is needed: the game is recorded into the data folder's store, or through
the gateway that --to names. Example: spar play connect-four --strength 0.5
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from sparring.cli.output import Output
from sparring.config import Config
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game
from sparring.games.protocol import View
from sparring.games.scripts import script_for
from sparring.games.spec import GameSpec
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.wire.champion import verify
from sparring.wire.chunk import Array, Chunk, Header
from sparring.wire.ids import new_episode

if TYPE_CHECKING:
    from numpy.random import Generator

SIGNS = {"you": "●", "bot": "○"}  # distinct without colour too
IN_BROWSER = ("connect-four", "duel", "cartpole")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", metavar="GAME", help="connect-four, duel or cartpole")
    parser.add_argument("--model", default="champion", metavar="ID", help="an id or its beginning, or script:NAME")
    parser.add_argument("--strength", type=float, metavar="S", help="0 plays at random, 1 at its best (1)")
    parser.add_argument("--seat", type=int, default=0, metavar="N", help="yours; 0 begins (0)")
    parser.add_argument("--browser", action="store_true", help="play in the browser instead")
    parser.add_argument("--to", metavar="URL", help="record through this gateway instead of into the store")
    parser.add_argument("--token", metavar="KEY", help="for --to")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the bot's random choices")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.game not in IN_BROWSER:
        raise Missing(f"{args.game!r} has no board here", where="spar play", do=f"Play {', '.join(IN_BROWSER)}")
    if args.browser or args.game != "connect-four":
        return _in_browser(args, output)
    if args.seat not in (0, 1) or not (args.strength is None or 0.0 <= args.strength <= 1.0):
        do = "Seats are 0 and 1, strength 0 to 1"
        raise ConfigError(f"--seat {args.seat}, --strength {args.strength}", where="spar play", do=do)
    return _in_terminal(args, output)


def _in_browser(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    import webbrowser

    gateway = args.config.gateway
    url = f"{args.to or f'http://{gateway.host}:{gateway.port}'}/play/{args.game}"
    output.say(f"Play at {url} (`spar demo` or `spar serve` serves it)")
    opened = args.browser and webbrowser.open(url)
    return {"game": args.game, "url": url, "opened": opened}


@dataclass(slots=True)
class _Opponent:
    """The opponent: a model in ONNX Runtime, or a script."""

    actor: str
    says: str
    chooser: Any = None
    script: Any = None
    last: Any = None  # the decision before, whose state a recurrent model continues

    def act(
        self, spec: GameSpec, seat: int, view: View, strength: float | None, rng: "Generator"
    ) -> tuple[int, float | None]:
        """A column and its log-probability, where that is known."""
        legal = view.legal[seat]
        if self.script is not None:
            return int(self.script.act(seat, view.observation[seat], legal, rng)[0]), None
        from sparring.nets.chooser import ActRequest

        row = {name: column[0] for name, column in view.observation[seat].items()}
        mask = None if legal is None else legal[0]
        state = None if self.last is None else self.last.state_after
        self.last = self.chooser.decide(spec.seats[seat], ActRequest(row, mask, strength, state), rng)
        return int(self.last.action), self.last.logp


def _opponent(name: str, spec: GameSpec, config: Config) -> _Opponent:
    from sparring.nets.chooser import Chooser

    if name.startswith("script:"):
        script = script_for(spec, name.removeprefix("script:"))
        return _Opponent(f"script:{script.name}", f"the script {script.name}", script=script)
    with open_registry(config.registry_url) as registry:
        if name == "champion":
            signed = registry.champion(spec.id, spec.version)
            if signed is None:
                return _Opponent("script:random", "chance: there is no champion yet", script=script_for(spec, "random"))
            wanted = verify(signed, registry.trust).model
        else:
            found = [listed.card.id for listed in registry.models(spec.id) if listed.card.id.startswith(name)]
            if len(found) != 1:
                do = "`spar models list` shows their ids"
                raise Missing(f"{len(found)} models of {spec.id} begin with {name!r}", where="--model", do=do)
            wanted = found[0]
        model = registry.fetch(wanted)
    if model.card.spec != spec.hash:
        raise Missing("it fits another version of the game", where=f"model {wanted[:12]}", do="Train one for this")
    return _Opponent(f"model:{wanted}", f"model {wanted[:8]}", chooser=Chooser(model))


class _Step(NamedTuple):
    """What a seat saw and chose."""

    seen: Array
    action: int
    tick: int
    legal: Array
    logp: float | None


@dataclass(slots=True)
class _Seat:
    """What one seat saw, chose and earned."""

    actor: str
    steps: list[_Step] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def add(self, view: View, seat: int, action: int, logp: float | None) -> None:
        """Keep one decision, taken at `view`."""
        legal = view.legal[seat]
        assert legal is not None
        self.steps.append(_Step(_board(view, seat), action, int(view.tick[0]), legal[0], logp))
        self.rewards.append(0.0)


def _board(view: View, seat: int) -> Array:
    board: Array = view.observation[seat]["observation/board"][0]
    return board


def _in_terminal(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    import numpy as np

    game = open_game("connect-four")
    you, bot = args.seat, 1 - args.seat
    opponent = _opponent(args.model, game.spec, args.config)
    output.say(f"You meet {opponent.says}. You are {SIGNS['you']}, and {'begin' if you == 0 else 'go second'}.")
    seats = {you: _Seat("person"), bot: _Seat(opponent.actor)}
    rng = np.random.default_rng(args.seed)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    left = False
    while not view.over[0] and not left:
        mover = int(view.to_act[0].argmax())
        column: int | None
        if mover == you:
            _draw(_board(view, you), output.stream)
            column, logp = _asked(view.legal[you], output), None
        else:
            column, logp = opponent.act(game.spec, bot, view, args.strength, rng)
            output.say(f"The bot drops into column {column + 1}.")
        if left := column is None:
            continue
        seats[mover].add(view, mover, column, logp)
        view = game.step([np.array([column], np.int32)] * 2)
        for seat, held in seats.items():
            if held.rewards:
                held.rewards[-1] += float(view.reward[0, seat])
    _draw(_board(view, you), output.stream)
    result = "left" if left else {1: "won", 0: "drawn", -1: "lost"}[int(view.outcome[0, you])]
    output.say({"won": "You won.", "lost": "The bot won.", "drawn": "A draw.", "left": "You left."}[result])
    recorded = _record(args, seats, view, game.spec)
    output.say(f"recorded {recorded} steps" if recorded else "nothing was recorded")
    return {"game": "connect-four", "opponent": opponent.actor, "seat": you, "result": result, "recorded": recorded}


def _asked(legal: Array | None, output: Output) -> int | None:
    """The person's column; None where they leave."""
    while True:
        print("your move, 1 to 7 (q leaves): ", end="", file=output.stream, flush=True)
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not line or word == "q":
            return None
        if word in set("1234567") and (legal is None or legal[0, int(word) - 1]):
            return int(word) - 1
        output.say(f"Column {word} is full." if word in set("1234567") else f"{word!r} is no column.")


def _record(args: argparse.Namespace, seats: dict[int, _Seat], view: View, spec: GameSpec) -> int:
    """Record both seats as one episode; how many steps were kept."""
    import sparring

    if args.to is None:
        return _into_store(args.config, seats, view, spec)
    folder = Path(args.config.data) / "play"
    with sparring.connect(args.to, "connect-four", "terminal", token=args.token, folder=folder) as connection:
        first = None
        for seat, held in seats.items():
            episode = connection.episode(seat, episode=first, actor=held.actor, source="play")
            first = episode.id
            for one, reward in zip(held.steps, held.rewards, strict=True):
                episode.record(one.seen, one.action, reward, tick=one.tick, legal=one.legal, logp=one.logp)
            over = bool(view.over[0])
            episode.end(_board(view, seat), terminated=over, outcome=float(view.outcome[0, seat]) if over else None)
        connection.flush(10.0)
        said = connection.statistics()
        return said.steps if said.acknowledged_chunks == said.chunks else 0


def _into_store(config: Config, seats: dict[int, _Seat], view: View, spec: GameSpec) -> int:
    import time

    import numpy as np

    episode, over, chunks = new_episode(), bool(view.over[0]), []
    for seat, held in seats.items():
        if not held.steps:
            continue
        header = Header(
            game=spec.id,
            version=spec.version,
            spec=spec.hash,
            episode=episode,
            seat=seat,
            first_step=0,
            steps=len(held.steps),
            actor=held.actor,
            source="play",
            ending="terminated" if over else "truncated",
            outcome=float(view.outcome[0, seat]) if over else None,
            seed=0,
            uploader="local",
            received_at_ms=int(time.time() * 1000),
        )
        seen, action, tick, legal, logp = zip(*held.steps, strict=True)
        columns = {
            "observation/board": np.stack(seen),
            "action": np.array(action, np.int32),
            "reward": np.array(held.rewards, np.float32),
            "tick": np.array(tick, np.int64),
            "legal": np.stack(legal).astype(np.uint8),
            "final_observation/board": _board(view, seat),
        }
        if None not in logp:
            columns["behaviour_logp"] = np.array(logp, np.float32)
        chunks.append(Chunk(header, columns))
    Path(config.data).mkdir(parents=True, exist_ok=True)
    with open_store(config.store_url) as store:
        kept = store.append(chunks)
    return sum(chunk.header.steps for chunk, one in zip(chunks, kept, strict=True) if one.verdict in ("new", "had"))


def _draw(planes: Array, stream: TextIO) -> None:
    """The board of one seat's view, with the columns' numbers under it; in colour where rich is installed."""
    cells = [
        ["you" if mine else "bot" if theirs else "" for mine, theirs in zip(*rows, strict=True)]
        for rows in zip(*planes, strict=True)
    ]
    rows = ["│" + "│".join(f" {SIGNS.get(cell, ' ')} " for cell in row) + "│" for row in cells]
    top, between, bottom = (f"{left}{middle.join(['───'] * 7)}{right}" for left, middle, right in ("╭┬╮", "├┼┤", "╰┴╯"))
    lines = [top, f"\n{between}\n".join(rows), bottom, "  1   2   3   4   5   6   7"]
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        print("\n".join(lines), file=stream, flush=True)
        return
    text = Text("\n".join(lines), style="blue")
    text.highlight_regex(SIGNS["you"], "bold red")
    text.highlight_regex(SIGNS["bot"], "bold yellow")
    Console(file=stream, highlight=False).print(text)
