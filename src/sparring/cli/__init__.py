"""`spar …`: one file per command. Nothing heavy is imported before a command is chosen."""

import argparse
import importlib
import sys
from pathlib import Path

COMMANDS = {  # in the order of `spar --help`; a command's file is imported only when it is called
    "demo": "everything on this machine: gateway, store, training, dashboard, games in the browser",
    "serve": "gateway, dashboard and inference",
    "collect": "mock players: play and upload",
    "sink": "from the stream into the store, by one process or a Spark cluster",
    "train": "learn a game, from simulation, from the store, or both",
    "node": "lend this machine to a training run elsewhere",
    "nodes": "list · drain · ban · allow · rotate: machines that joined a run",
    "evaluate": "how well a model plays: returns, or wins against another",
    "play": "play against a model, in the terminal or the browser",
    "league": "ratings of a game's models and scripts, by matches among them",
    "models": "list · show · pull · push · verify · promote · rollback · copy · share",
    "runs": "list · show · compare · delete",
    "data": "stats · quality · export · import · erase",
    "games": "list · check",
    "keys": "create · list · revoke",
    "replay": "one recorded episode again, bit for bit",
    "init": "a first spar.toml and game spec",
    "backup": "the data folder, whole, into one file",
    "restore": "a backup into an empty data folder",
    "stream": "create · describe · reshard · delete: between gateway and store",
    "store": "migrate · describe: where experience is kept",
    "services": "list · scale · keys: what runs, how many of it, and who may call",
    "cluster": "yaml · up · submit · down · leftovers: Ray on EC2, and what still costs money",
    "doctor": "what is there, what is missing, and the command that fixes it",
    "bench": "every claim in the docs, as a command",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code. 1: it failed and said why, 2: the call was wrong."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--version"]:
        from sparring import __version__

        print(f"spar {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] not in COMMANDS:
        return _unknown(words[0])
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    from sparring.cli.output import Output, report, unexpected
    from sparring.config import check_data_folder, load
    from sparring.errors import SparringError, missing_package
    from sparring.user_code import told_as_users

    command = importlib.import_module(f"sparring.cli.{name}")
    parser = argparse.ArgumentParser(f"spar {name}", description=command.__doc__, allow_abbrev=False)
    command.arguments(parser)
    _common(parser)
    rest: list[str] = []
    if getattr(command, "REST", False) and "--" in words:  # what follows is another command's
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    args = parser.parse_args(words)
    args.rest, args.words = rest, [name, *words]
    output = Output(json=args.json)
    try:
        overrides = (*args.set, *([f"data={args.data}"] if args.data else []))
        args.config = load(args.config_file, overrides)
        if name != "doctor":  # which says it as a finding
            check_data_folder(Path(args.config.data))
        with told_as_users():
            result = command.run(args, output)
    except SparringError as error:
        return report(error, output)
    except KeyboardInterrupt:
        output.say("stopped")
        return 130
    except BrokenPipeError:
        return 0
    except ModuleNotFoundError as error:
        return report(missing_package(error) or unexpected(error), output)
    except Exception as error:  # noqa: BLE001  (whatever it is, a person is told in words, and the story is kept)
        return report(unexpected(error), output)
    return output.finish(result)


def _common(parser: argparse.ArgumentParser) -> None:
    shared = parser.add_argument_group("on every command")
    shared.add_argument("--config", dest="config_file", type=Path, metavar="FILE", help="instead of ./spar.toml")
    shared.add_argument("--data", metavar="DIR", help="the data folder")
    shared.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of spar.toml")
    shared.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    lead = "usage: spar COMMAND …\n\nBots for games that learn from the people who play."
    return f"{lead}\n\n{rows}\n\nspar COMMAND --help says more."


def _unknown(name: str) -> int:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `spar {near[0]}`?" if near else "`spar --help` lists them."
    print(f"spar: there is no command {name!r}; {hint}", file=sys.stderr)
    return 2
