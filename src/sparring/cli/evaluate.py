"""How well a player plays: the distribution of its returns, or wins against another.

MODEL is a model's id or the beginning of one, champion:GAME, or script:GAME/NAME; --against takes the same, or the
bare name of one of the game's scripts. Seats are swapped; models play at their best.
"""

import argparse
from pathlib import Path
from typing import Any

from sparring.cli.output import Output


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an id, champion:GAME or script:GAME/NAME")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--against", metavar="MODEL", help="who else plays; by default the script random")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the distribution into a .png or .svg")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed plays the same games (0)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.learn.evaluate import evaluate
    from sparring.learn.histogram import check_format, lines, plot, summary
    from sparring.learn.named import named
    from sparring.registry import open_registry

    if args.plot is not None:
        check_format(args.plot)
    with open_registry(args.config.registry_url) as registry:
        ours = named(args.model, registry)
        rival = None if args.against is None else named(args.against, registry, ours.game)
    against = None if rival is None else rival.player
    played = evaluate(ours.game, ours.player, episodes=args.episodes, seed=args.seed, against=against)
    told = summary(played.returns)
    output.say(f"{ours.game}: {ours.name[:40]} in {args.episodes} episodes")
    for line in lines(played.returns):
        output.say(line)
    spread = "  ".join(f"{name} {value:.4g}" for name, value in told.quantiles.items())
    output.say(f"mean {told.mean:.4g}  sd {told.sd:.4g}  {spread}")
    result: dict[str, Any] = {
        "model": ours.name,
        "game": ours.game,
        "episodes": args.episodes,
        "seed": args.seed,
        "return_mean": told.mean,
        "return_sd": told.sd,
        "quantiles": told.quantiles,
        "returns": played.returns.tolist(),
    }
    if played.wins is not None:
        name = "script:random" if rival is None else rival.name
        output.say(f"against {name[:40]}: {played.wins} won, {played.draws} drawn, {played.losses} lost")
        result |= {"against": name, "wins": played.wins, "draws": played.draws, "losses": played.losses}
    if args.plot is not None:
        plot(played.returns, args.plot, f"{ours.game}: {ours.name[:24]}, {args.episodes} episodes")
        output.say(f"drawn into {args.plot}")
        result["plot"] = str(args.plot)
    return result
