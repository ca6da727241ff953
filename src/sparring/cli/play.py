"""Play against a model: Connect Four here in the terminal, the other games in the browser.

Keys 1 to 7 drop a stone, q leaves. It works without a server; what is played is recorded as play, in the
data folder's store, or through the gateway that --to names.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Missing

if TYPE_CHECKING:
    from numpy.random import Generator

    from sparring.config import Config
    from sparring.games.protocol import View
    from sparring.games.spec import GameSpec
    from sparring.wire.chunk import Array

IN_BROWSER = ("connect-four", "duel", "cartpole")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", metavar="GAME", help="connect-four, duel or cartpole")
    parser.add_argument("--model", default="champion", metavar="ID", help="an id or its beginning, or script:NAME")
    parser.add_argument("--strength", type=float, metavar="S", help="0 is chance, 1 at its best (1)")
    parser.add_argument("--seat", type=int, default=0, metavar="N", help="yours; 0 begins (0)")
    parser.add_argument("--browser", action="store_true", help="play in the browser instead")
    parser.add_argument("--to", metavar="URL", help="record through this gateway instead of into the store")
    parser.add_argument("--token", metavar="KEY", help="for --to")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the bot's chance")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.game not in IN_BROWSER:
        raise Missing(f"{args.game!r} has no board here", where="spar play", do=f"Play {', '.join(IN_BROWSER)}")
    if args.browser or args.game != "connect-four":
        return _in_browser(args, output)
    if args.seat not in (0, 1) or not (args.strength is None or 0.0 <= args.strength <= 1.0):
        raise ConfigError(
            f"--seat {args.seat}, --strength {args.strength}",
            where="spar play",
            do="Seats are 0 and 1, strength 0 to 1",
        )
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
    """Whoever sits opposite: a model in ONNX Runtime, or a script."""

    actor: str
    says: str
    chooser: Any = None
    script: Any = None
    last: Any = None  # the decision before, whose state a recurrent model goes on from

    def act(
        self, spec: "GameSpec", seat: int, view: "View", strength: float | None, rng: "Generator"
    ) -> tuple[int, float | None]:
        """A column and its log-probability, where that is known."""
        from sparring.nets.chooser import ActRequest

        legal = view.legal[seat]
        if self.script is not None:
            return int(self.script.act(seat, view.observation[seat], legal, rng)[0]), None
        row = {name: column[0] for name, column in view.observation[seat].items()}
        mask = None if legal is None else legal[0]
        state = None if self.last is None else self.last.state_after
        self.last = self.chooser.decide(spec.seats[seat], ActRequest(row, mask, strength, state), rng)
        return int(self.last.action), self.last.logp


def _opponent(name: str, spec: "GameSpec", config: "Config") -> _Opponent:
    from sparring.games.scripts import script_for
    from sparring.nets.chooser import Chooser
    from sparring.registry import open_registry
    from sparring.wire.champion import verify

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
                raise Missing(
                    f"{len(found)} models of {spec.id} begin with {name!r}",
                    where="--model",
                    do="`spar models list` shows their ids",
                )
            wanted = found[0]
        model = registry.fetch(wanted)
    if model.card.spec != spec.hash:
        raise Missing("it fits another version of the game", where=f"model {wanted[:12]}", do="Train one for this")
    return _Opponent(f"model:{wanted}", f"model {wanted[:8]}", chooser=Chooser(model))


@dataclass(slots=True)
class _Seat:
    """What one seat saw and did, a row for each decision."""

    actor: str
    observation: list["Array"] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    tick: list[int] = field(default_factory=list)
    legal: list["Array"] = field(default_factory=list)
    logp: list[float | None] = field(default_factory=list)

    def note(self, view: "View", seat: int, action: int, logp: float | None) -> None:
        """Keep one decision, taken at `view`."""
        legal = view.legal[seat]
        assert legal is not None
        self.observation.append(view.observation[seat]["observation/board"][0])
        self.action.append(action)
        self.reward.append(0.0)
        self.tick.append(int(view.tick[0]))
        self.legal.append(legal[0])
        self.logp.append(logp)


def _in_terminal(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    import numpy as np

    from sparring.cli import connect_four_board as board
    from sparring.games.catalogue import open_game

    game = open_game("connect-four")
    you, bot = args.seat, 1 - args.seat
    opponent = _opponent(args.model, game.spec, args.config)
    output.say(f"You meet {opponent.says}. You are {board.SIGNS['you']}, and {'begin' if you == 0 else 'go second'}.")
    seats = {you: _Seat("person"), bot: _Seat(opponent.actor)}
    rng = np.random.default_rng(args.seed)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    left = False
    while not view.over[0] and not left:
        mover = int(view.to_act[0].argmax())
        column: int | None
        if mover == you:
            board.draw(view.observation[you]["observation/board"][0], output.stream)
            column, logp = _asked(view.legal[you], output), None
        else:
            column, logp = opponent.act(game.spec, bot, view, args.strength, rng)
            output.say(f"The bot drops into column {column + 1}.")
        if left := column is None:
            continue
        seats[mover].note(view, mover, column, logp)
        view = game.step([np.array([column], np.int32)] * 2)
        for seat, row in seats.items():
            if row.reward:
                row.reward[-1] += float(view.reward[0, seat])
    board.draw(view.observation[you]["observation/board"][0], output.stream)
    result = "left" if left else {1: "won", 0: "drawn", -1: "lost"}[int(view.outcome[0, you])]
    output.say({"won": "You won.", "lost": "The bot won.", "drawn": "A draw.", "left": "You left."}[result])
    recorded = _record(args, seats, view, game.spec)
    output.say(f"recorded {recorded} steps" if recorded else "nothing was recorded")
    return {"game": "connect-four", "opponent": opponent.actor, "seat": you, "result": result, "recorded": recorded}


def _asked(legal: "Array | None", output: Output) -> int | None:
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


def _record(args: argparse.Namespace, seats: dict[int, _Seat], view: "View", spec: "GameSpec") -> int:
    """Keep both seats as one episode; how many steps were kept."""
    import sparring

    if args.to is None:
        return _into_store(args.config, seats, view, spec)
    folder = Path(args.config.data) / "play"
    with sparring.connect(args.to, "connect-four", "terminal", token=args.token, folder=folder) as connection:
        first = None
        for seat, rows in seats.items():
            episode = connection.episode(seat, episode=first, actor=rows.actor, source="play")
            first = episode.id
            for i, action in enumerate(rows.action):
                seen, earned, tick = rows.observation[i], rows.reward[i], rows.tick[i]
                episode.record(seen, action, earned, tick=tick, legal=rows.legal[i], logp=rows.logp[i])
            over = bool(view.over[0])
            outcome = float(view.outcome[0, seat]) if over else None
            episode.end(view.observation[seat]["observation/board"][0], terminated=over, outcome=outcome)
        connection.flush(10.0)
        said = connection.statistics()
        return said.steps if said.acknowledged_chunks == said.chunks else 0


def _into_store(config: "Config", seats: dict[int, _Seat], view: "View", spec: "GameSpec") -> int:
    import time

    from sparring.store import open_store
    from sparring.wire.ids import new_episode

    episode, now_ms = new_episode(), int(time.time() * 1000)
    chunks = [_chunk(rows, seat, view, spec, episode, now_ms) for seat, rows in seats.items() if rows.action]
    Path(config.data).mkdir(parents=True, exist_ok=True)
    with open_store(config.store_url) as store:
        kept = store.append(chunks)
    return sum(chunk.header.steps for chunk, one in zip(chunks, kept, strict=True) if one.verdict in ("new", "had"))


def _chunk(rows: _Seat, seat: int, view: "View", spec: "GameSpec", episode: Any, now_ms: int) -> Any:
    import numpy as np

    from sparring.wire.chunk import Chunk, Header

    over = bool(view.over[0])
    header = Header(
        game=spec.id,
        version=spec.version,
        spec=spec.hash,
        episode=episode,
        seat=seat,
        first_step=0,
        steps=len(rows.action),
        actor=rows.actor,
        source="play",
        ending="terminated" if over else "truncated",
        outcome=float(view.outcome[0, seat]) if over else None,
        seed=0,
        uploader="local",
        received_at_ms=now_ms,
    )
    columns = {
        "observation/board": np.stack(rows.observation),
        "action": np.array(rows.action, np.int32),
        "reward": np.array(rows.reward, np.float32),
        "tick": np.array(rows.tick, np.int64),
        "legal": np.stack(rows.legal).astype(np.uint8),
        "final_observation/board": view.observation[seat]["observation/board"][0],
    }
    if all(logp is not None for logp in rows.logp):
        columns["behaviour_logp"] = np.array(rows.logp, np.float32)
    return Chunk(header, columns)
