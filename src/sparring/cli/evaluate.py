"""Measure how well a player plays: the distribution of its returns, or wins against another player.

MODEL is a model's id or the beginning of one, champion:GAME, or script:GAME/NAME; ID,ID are models of different kinds
of seats that play together. --against takes the same, or the
bare name of one of the game's scripts. Seats are swapped; models play at their best.

With --from store nothing is played: recorded play says what the model would earn, by weighted importance sampling
(wis), fitted Q evaluation (fqe), doubly robust estimation (dr) and games in a world learned from the records (world),
each with its spread, and which of them to rank models by. Example: spar evaluate champion:cartpole --episodes 200
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparring.acting.evaluate import evaluate
from sparring.acting.lookahead import Searching
from sparring.acting.players import Lineup, Player, check_has_others, named
from sparring.acting.return_histogram import check_format, lines, plot, summary
from sparring.cli.output import Output
from sparring.errors import ConfigError
from sparring.games.catalogue import Catalogue, spec_of
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.wire.model import Model

EPISODES = 100


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an id, ID,ID, champion:GAME or script:GAME/NAME")
    parser.add_argument("--episodes", type=int, metavar="N", help="how many (100; with --video 1)")
    parser.add_argument("--against", metavar="MODEL", help="who else plays; by default the script random")
    parser.add_argument("--search-ms", type=float, default=0.0, metavar="MS", help="MODEL looks ahead so long (0)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the distribution into a .png or .svg")
    parser.add_argument("--video", type=Path, metavar="FILE", help="write what is played into an .mp4 or .gif")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed plays the same games (0)")
    parser.add_argument("--from", dest="source", default="sim", metavar="SOURCE", help="sim plays, store reads records")
    parser.add_argument("--discount", type=float, default=0.99, metavar="G", help="with --from store (0.99)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.source == "store":
        if args.search_ms:
            raise ConfigError("records are not searched", where="--search-ms", do="Leave it out, or leave out --from")
        return _from_store(args, output)
    if args.source != "sim":
        raise ConfigError(f"there is no source {args.source!r}", where="--from", do="Use sim or store")
    return _from_games(args, output)


def _from_store(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Estimate a model's return from the store's records."""
    import torch

    from sparring.learn.offline.evaluation import evaluate_offline
    from sparring.learn.offline.records import read_records

    with open_registry(args.config.registry_url) as registry:
        ours = named(args.model, registry)
        if len(spec_of(ours.game).kinds) > 1:
            do = "Let it play, without --from"
            raise ConfigError("its seats are of several kinds", where=f"--from store: game {ours.game}", do=do)
        model = ours.player
        assert not isinstance(model, Lineup)  # of several kinds
        listed = [] if isinstance(model, str) else registry.models(model.card.game)
    tried = next((one.evidence for one in listed if not isinstance(model, str) and one.card.id == model.id), None)
    spec = Catalogue.from_config(args.config).newest(ours.game) or spec_of(ours.game)
    if isinstance(model, str) or model.card.spec != spec.hash:
        wrong = "it is a script" if isinstance(model, str) else f"it was made for another {ours.game}"
        raise ConfigError(wrong, where="--from store", do="Name a model of this game, or let it play without --from")
    with open_store(args.config.store_url) as store:
        records = read_records(store, spec)
    output.say(f"{ours.game}: {_short(ours.name)} by {records.episodes} recorded episodes of {records.steps} steps")
    torch.set_num_threads(1)  # small matrices lose time on every other thread
    forward = forward_without_torch(model.card.network, read_weights(model))
    said = evaluate_offline(records, forward, spec, discount=args.discount, seed=args.seed)
    rows = []
    for one in said.estimates:
        figures = (one.value, one.low, one.high, one.effective_episodes)
        rows.append([one.name, *(f"{figure:.4g}" for figure in figures), one.note])
    output.table(["estimate", "return", "low", "high", "effective", "note"], rows)
    output.say(f"rank models by {said.advised}; discount {said.discount:g}; behaviour policy: {said.behaviour}")
    if tried is not None:
        against = f" against {tried.against}" if tried.against else ""
        output.say(f"trial: {tried.mean:.4g} (sd {tried.sd:.3g}) in {tried.episodes} games{against}, not discounted")
    for line in said.missing:
        output.say(f"missing: {line}")
    trial = None if tried is None else {"mean": tried.mean, "sd": tried.sd, "episodes": tried.episodes}
    return {"model": ours.name, "game": ours.game, "seed": args.seed, "trial": trial, **asdict(said)}


def _from_games(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.plot is not None:
        check_format(args.plot, "--plot")
    if args.episodes is None:
        args.episodes = EPISODES if args.video is None else 1
    with open_registry(args.config.registry_url) as registry:
        ours = named(args.model, registry)
        if args.against is not None:
            check_has_others(ours.game, "--against")
        rival = None if args.against is None else named(args.against, registry, ours.game)
    against = None if rival is None else rival.player
    player: Player = ours.player
    if args.search_ms:
        if not isinstance(ours.player, Model):
            wrong, do = f"{_short(ours.name)} is not one model", "Name a model, or leave out --search-ms"
            raise ConfigError(wrong, where="--search-ms", do=do)
        player = Searching(ours.player, args.search_ms)
    played = evaluate(ours.game, player, episodes=args.episodes, seed=args.seed, against=against, video=args.video)
    told = summary(played.returns)
    output.say(f"{ours.game}: {_short(ours.name)} in {args.episodes} episodes")
    for line in lines(played.returns):
        output.say(line)
    words = {"p00": "least", "p50": "median", "p100": "most"}
    spread = "  ".join(f"{words.get(name, name)} {value:.4g}" for name, value in told.quantiles.items())
    output.say(f"mean {told.mean:.4g}  sd {told.sd:.4g}  {spread}")
    result: dict[str, Any] = {
        "model": ours.name,
        "game": ours.game,
        "episodes": args.episodes,
        "seed": args.seed,
        "search_ms": args.search_ms,
        "return_mean": told.mean,
        "return_sd": told.sd,
        "quantiles": told.quantiles,
        "returns": played.returns.tolist(),
    }
    if played.wins is not None:
        name = "script:random" if rival is None else rival.name
        output.say(f"against {_short(name)}: {played.wins} won, {played.draws} drawn, {played.losses} lost")
        result |= {"against": name, "wins": played.wins, "draws": played.draws, "losses": played.losses}
    if args.plot is not None:
        versus = f" against {_short(result['against'])}" if "against" in result else ""
        plot(played.returns, args.plot, f"{ours.game}: {_short(ours.name)}{versus}, {args.episodes} episodes")
        output.say(f"drawn into {args.plot}")
        result["plot"] = str(args.plot)
    if args.video is not None:
        output.say(f"filmed into {args.video}")
        result["video"] = str(args.video)
    return result


def _short(name: str) -> str:
    """A model by the beginning of its id, as everywhere; a script by its whole name."""
    return name if ":" in name else name[:12]
