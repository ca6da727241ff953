"""The nodes of the parents that run on this data folder: what they do, and orders to them.

drain lets a node finish its exchange and leave; ban disconnects it and refuses it, by its name, or as key:ID every node
with that API key; allow takes either back. rotate makes a new token for --accept-nodes: nodes that are connected stay.
Example: spar nodes ban stranger-3f2a1c --why "its contributions are noise"
"""

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from sparring.cli.output import Output
from sparring.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=["list", "drain", "ban", "allow", "rotate"])
    parser.add_argument("node", nargs="?", help="drain, ban, allow: its name, or key:ID")
    parser.add_argument("--why", default="", metavar="TEXT", help="ban: what the node is told")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.nodes.board import Board

    board = Board(args.config.data)
    if args.action == "rotate":
        from sparring.nodes.link import Tokens

        tokens = Tokens(Path(args.config.data) / "nodes")
        tokens.rotate()
        output.say(f"a new token holds from now on, in {tokens.path}: put it into the line that nodes join with")
        return {"rotated": True}
    if args.action != "list":
        if not args.node:
            wrong, do = "no node was named", f"Write spar nodes {args.action} NAME"
            raise ConfigError(wrong, where=f"spar nodes {args.action}", do=do)
        board.order(args.action, args.node, args.why)
        output.say(f"{args.node}: {args.action}; parents obey within seconds")
        known = {one.node for parent in board.parents() for one in parent.nodes}
        if args.node not in known and not args.node.startswith("key:"):
            output.say(f"no run here has a node called {args.node!r} now")
    return _shown(board, output, quiet=args.action != "list")


def _shown(board: Any, output: Output, *, quiet: bool) -> dict[str, Any]:
    parents, orders, now_ms = board.parents(), board.orders(), int(time.time() * 1000)
    rows = []
    for parent in parents:
        for one in parent.nodes:
            seen = f"{max(0, now_ms - one.seen_at_ms) / 1000:.0f} s" if one.seen_at_ms else ""
            refused = " ".join(f"{reason} {count}" for reason, count in one.refused.items())
            moved = f"{(one.received_bytes + one.sent_bytes) / 1e6:.2f} MB"
            shown = (one.workers, f"{one.steps_per_s:.0f}", one.lag, one.merges, moved, seen)
            rows.append((one.node, one.state, *shown, refused, one.why))
    columns = ("node", "state", "workers", "steps/s", "lag", "merges", "moved", "seen", "refused", "")
    if not quiet:
        output.table(columns, rows)
        for name, why in orders.banned.items():
            output.say(f"banned: {name} ({why})")
        if orders.drained:
            output.say(f"drained: {', '.join(orders.drained)}")
    return {"parents": msgspec.to_builtins(parents), "orders": msgspec.to_builtins(orders)}
