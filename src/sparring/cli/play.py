"""Play against a model: Connect Four here in the terminal, the other games in the browser.

Keys 1 to 7 drop a disc, q leaves. No server is needed: the game is recorded into the data folder's store, or through
the gateway that --to names. Example: spar play connect-four --strength 0.5 --style centre
"""

import argparse
import sys
import time
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np
from numpy.random import Generator

import sparring
from sparring.cli.output import Output, token_argument
from sparring.config import Config
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game
from sparring.games.cutter import cut
from sparring.games.protocol import View
from sparring.games.scripts import Script, script_for
from sparring.games.spec import GameSpec
from sparring.games.step_buffer import Behaviour, Rows, StepBuffer, layout_of
from sparring.nets.chooser import ActRequest, Chooser, Decision, LadderChooser
from sparring.nets.tree_search import TreeSearch
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.wire.champion import verify
from sparring.wire.chunk import Array, Chunk
from sparring.wire.ids import new_episode
from sparring.wire.strengths import no_style, verify_strengths

BOARD = "observation/board"
SIGNS = {"you": "●", "bot": "○"}  # distinct without colour too
IN_BROWSER = ("connect-four", "duel", "cartpole")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", metavar="GAME", help="connect-four, duel or cartpole")
    parser.add_argument("--model", default="champion", metavar="ID", help="an id or its beginning, or script:NAME")
    parser.add_argument(
        "--strength",
        type=float,
        metavar="S",
        help="0 plays at random, 1 at its best (1); between: a step of the game's ladder, see spar models strengths",
    )
    parser.add_argument("--style", metavar="NAME", help="how it plays: a name that spar models strengths shows")
    parser.add_argument("--search-ms", type=float, default=0.0, metavar="MS", help="a model looks ahead so long (0)")
    parser.add_argument("--seat", type=int, default=0, metavar="N", help="yours; 0 begins (0)")
    parser.add_argument("--browser", action="store_true", help="play in the browser instead")
    parser.add_argument("--to", metavar="URL", help="record through this gateway instead of into the store")
    token_argument(parser, "for --to")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the bot's random choices")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.game not in IN_BROWSER:
        raise Missing(f"{args.game!r} has no board here", where="spar play", do=f"Play {', '.join(IN_BROWSER)}")
    if args.browser or args.game != "connect-four":
        return _in_browser(args, output)
    is_share = args.strength is None or 0.0 <= args.strength <= 1.0
    if args.seat not in (0, 1) or not is_share or not 0 <= args.search_ms < float("inf"):
        do = "Seats are 0 and 1, strength 0 to 1, and a search lasts 0 ms or more"
        said = f"--seat {args.seat}, --strength {args.strength}, --search-ms {args.search_ms:g}"
        raise ConfigError(said, where="spar play", do=do)
    return _in_terminal(args, output)


def _in_browser(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.strength is not None or args.style is not None or args.search_ms or args.model != "champion":
        do = "Choose strength and style on the page; `spar play connect-four` takes all four in the terminal"
        raise ConfigError("--strength, --style, --search-ms and --model are the terminal's", where="spar play", do=do)
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
    plays: Chooser | LadderChooser | Script
    search_ms: float = 0.0  # it looks ahead for so long
    tree: TreeSearch | None = None
    last: Decision | None = None  # the decision before, whose state a recurrent model continues

    def act(
        self, seat: int, view: View, spec: GameSpec, strength: float | None, rng: Generator
    ) -> tuple[int, Behaviour]:
        """A column, and how it was chosen."""
        legal, seen = view.legal[seat], view.observation[seat]
        if isinstance(self.plays, Script):
            return int(self.plays.act(seat, seen, legal, rng)[0]), Behaviour(self.actor)
        row = {name: column[0] for name, column in seen.items()}
        state = None if self.last is None else self.last.state_after
        request = ActRequest(row, None if legal is None else legal[0], strength, state, vary=spec.has_rivals)
        if self.tree is not None:
            until_s = time.monotonic() + self.search_ms / 1000
            self.last = self.plays.search(self.tree, seat, request, rng, until_s)
        else:
            self.last = self.plays.decide(spec.seats[seat], request, rng)
        return int(self.last.action), Behaviour(self.last.actor, self.last.logp)


def _opponent(name: str, spec: GameSpec, config: Config, strength: float | None, style: str | None) -> _Opponent:
    if style is not None and name != "champion":
        do = "Leave out --model or --style"
        raise ConfigError("a model or script that is named plays in its own way", where="--style", do=do)
    if name.startswith("script:"):
        script = script_for(spec, name.removeprefix("script:"))
        return _Opponent(f"script:{script.name}", f"the script {script.name}", script)
    with open_registry(config.registry_url) as registry:
        sold = registry.strengths(spec.id, spec.version) if name == "champion" else None
        if sold is None and style is not None:
            raise no_style(spec.id, style, [])
        strength = 1.0 if strength is None else strength
        if sold is not None and (strength < 1.0 or style is not None):
            step = verify_strengths(sold, registry.trust, spec).step(strength, style)
            if step.share == 0.0:
                return _Opponent("script:random", "random moves", script_for(spec, "random"))
            about = f"style {style}, " if style is not None else ""
            says = f"model {step.model[:8]} ({about}{step.does}, {step.elo:+.0f} Elo above random play)"
            plays = LadderChooser(step, Chooser(registry.fetch(step.model)))
            return _Opponent(plays.actor, says, plays)
        if name == "champion":
            signed = registry.champion(spec.id, spec.version)
            if signed is None:
                return _Opponent("script:random", "chance: there is no champion yet", script_for(spec, "random"))
            wanted = verify(signed, registry.trust).model
        else:
            wanted = registry.find(name)
        model = registry.fetch(wanted)
    if model.card.spec != spec.hash:
        raise Missing("it fits another game or version", where=f"model {wanted[:12]}", do="Train one for this")
    return _Opponent(f"model:{wanted}", f"model {wanted[:8]}", Chooser(model))


def _in_terminal(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    game = open_game("connect-four")
    you, bot = args.seat, 1 - args.seat
    opponent = _opponent(args.model, game.spec, args.config, args.strength, args.style)
    if args.search_ms and args.model.startswith("script:"):
        raise ConfigError("a script does not search", where="--search-ms", do="Leave it out, or name a model")
    if args.search_ms and not isinstance(opponent.plays, Script):
        tree = TreeSearch(lambda n: open_game("connect-four", n), game.spec)
        opponent = replace(opponent, search_ms=args.search_ms, tree=tree)
    output.say(f"You meet {opponent.says}. You are {SIGNS['you']}, and {'begin' if you == 0 else 'go second'}.")
    episode, layouts = new_episode(), [layout_of(game.spec, seat) for seat in (0, 1)]
    seats = [StepBuffer(layout.header(episode, "play", seed=0), layout) for layout in layouts]
    rng = np.random.default_rng(args.seed)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    column: int | None
    while not view.over[0]:
        mover = int(view.to_act[0].argmax())
        legal = view.legal[mover]
        assert legal is not None
        if mover == you:
            _draw(_board(view, you), output.stream)
            column, by = _asked(legal, output), Behaviour("person")
            if column is None:
                break
        else:
            column, by = opponent.act(bot, view, game.spec, args.strength, rng)
            output.say(f"The bot drops into column {column + 1}.")
        seats[mover].write(_board(view, mover), column, 0.0, tick=int(view.tick[0]), legal=legal[0], by=by)
        view = game.step([np.array([column], np.int32)] * 2)
        for seat, buffer in enumerate(seats):
            if buffer.steps:
                buffer.earn(float(view.reward[0, seat]))
    _draw(_board(view, you), output.stream)
    over = bool(view.over[0])
    result = {1: "won", 0: "drawn", -1: "lost"}[int(view.outcome[0, you])] if over else "left"
    output.say({"won": "You won.", "lost": "The bot won.", "drawn": "A draw.", "left": "You left."}[result])
    for seat, buffer in enumerate(seats):
        buffer.end(_board(view, seat), terminated=over, outcome=float(view.outcome[0, seat]) if over else None)
    chunks = [chunk for buffer in seats for chunk in cut(buffer, due=True)]
    recorded = _into_store(args.config, chunks) if args.to is None else _upload(args, chunks)
    output.say(f"recorded {recorded} steps" if recorded else "nothing was recorded")
    return {"game": "connect-four", "opponent": opponent.actor, "seat": you, "result": result, "recorded": recorded}


def _board(view: View, seat: int) -> Array:
    board: Array = view.observation[seat][BOARD][0]
    return board


def _asked(legal: Array, output: Output) -> int | None:
    """The person's column; None where they leave."""
    while True:
        print("your move, 1 to 7 (q leaves): ", end="", file=output.stream, flush=True)
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not line or word == "q":
            return None
        if word in set("1234567") and legal[0, int(word) - 1]:
            return int(word) - 1
        output.say(f"Column {word} is full." if word in set("1234567") else f"{word!r} is no column.")


def _upload(args: argparse.Namespace, chunks: list[Chunk]) -> int:
    """Record the game through the gateway; how many steps it took."""
    folder, first = Path(args.config.data) / "play", None
    with sparring.connect(args.to, "connect-four", "terminal", token=args.token, folder=folder) as connection:
        for chunk in chunks:
            head, columns = chunk.header, chunk.columns
            episode = connection.episode(head.seat, episode=first, actor=head.actor, source="play")
            first = episode.id
            action, reward, tick, legal = (columns[name] for name in ("action", "reward", "tick", "legal"))
            episode.record_rows(Rows([columns[BOARD]], action, reward, tick, legal, columns.get("behaviour_logp")))
            episode.end(columns[f"final_{BOARD}"], terminated=head.ending == "terminated", outcome=head.outcome)
        connection.flush(10.0)
        said = connection.statistics()
        return said.steps if said.acknowledged_chunks == said.chunks else 0


def _into_store(config: Config, chunks: list[Chunk]) -> int:
    """Record the game into the data folder's store; how many steps it took."""
    now_ms = int(time.time() * 1000)
    heads = [msgspec.structs.replace(chunk.header, uploader="local", received_at_ms=now_ms) for chunk in chunks]
    Path(config.data).mkdir(parents=True, exist_ok=True)
    with open_store(config.store_url) as store:
        kept = store.append([Chunk(head, chunk.columns) for head, chunk in zip(heads, chunks, strict=True)])
    return sum(head.steps for head, one in zip(heads, kept, strict=True) if one.verdict in ("new", "had"))


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
