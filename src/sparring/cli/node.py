"""Lend this machine to a training run, over an encrypted WebSocket.

--listen waits for a parent that dials, and prints the line to paste there; --join dials a parent that `spar train
--accept-nodes` started, which also works from behind NAT. A node plays and learns on its cores and exchanges weights
with the parent; it receives data, never code. --relay plays nothing: machines join it as if it were the parent, and it
has one connection to the parent for all of them. Ctrl-C ends it.
Example: spar node --listen 0.0.0.0:8720
"""

import argparse
import os
import secrets
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.nodes.link import Door


def arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--listen", metavar="HOST:PORT", help="wait there for a parent; port 0 picks a free one")
    how.add_argument("--join", metavar="URL", help="the line that `spar train --accept-nodes` printed")
    how.add_argument("--rotate-token", action="store_true", help="make a new token; parents need the new line")
    parser.add_argument("--relay", metavar="URL", help="--listen: pass on what nodes learn to the parent of that line")
    relayed = "--relay: dial this node as well; may be repeated"
    parser.add_argument("--nodes", action="append", default=[], metavar="URL", help=relayed)
    parser.add_argument("--workers", type=int, metavar="N", help="that play and learn (cores less one, at least 1)")
    parser.add_argument("--name", metavar="NAME", help="as the parent shows it (this machine's name)")
    parser.add_argument("--cert", default="", metavar="FILE", help="--listen: a certificate of your own, PEM")
    parser.add_argument("--key", default="", metavar="FILE", help="--listen: its key, PEM")
    parser.add_argument("--plain", action="store_true", help="--listen: without encryption, on loopback alone")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.nodes.link import Tokens, read_address
    from sparring.nodes.messages import NAME

    folder = Path(args.config.data) / "nodes"
    if args.rotate_token:
        Tokens(folder).rotate()
        output.say(f"a new token holds from now on, in {folder / 'token'}: put it into the line that parents have")
        return {"rotated": True}
    workers = max(1, len(os.sched_getaffinity(0)) - 1) if args.workers is None else args.workers
    if workers < 1:
        raise ConfigError(f"--workers {workers}", where="spar node", do="Count them from 1")
    if args.name and not NAME.fullmatch(args.name):
        raise ConfigError(f"--name {args.name!r}", where="spar node", do="Use 1 to 64 letters, digits and any of _.:-")
    address = None if args.join is None else read_address(args.join, "--join")
    if (args.relay or args.nodes) and not (args.relay and args.listen):
        do = "Write spar node --relay URL --listen HOST:PORT"
        raise ConfigError("a relay listens for nodes and joins a parent", where="spar node --relay", do=do)
    with ExitStack() as opened:
        door, line = (None, "") if address is not None else _door(args, folder, opened)
        if args.relay and door is not None:
            return _relay(args, output, door, line)
        import torch

        from sparring.nodes.child import Node

        torch.set_num_threads(1)
        node = Node(args.config, args.name or _name(line), workers)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: node.stop())
        with output.waits():
            if door is not None:
                output.say(f"paste on the parent: spar train GAME --algo a3c --nodes '{line}'")
                said = node.listen(door)
            else:
                assert address is not None  # one of the two is required
                said = node.join(address)
    output.say(f"node {node.name}: {said} after {node.exchanges} exchanges")
    return {"node": node.name, "exchanges": node.exchanges, "ended": said}


def _relay(args: argparse.Namespace, output: Output, door: "Door", line: str) -> dict[str, Any]:
    from sparring.nodes.link import read_address
    from sparring.nodes.relay import Relay

    relay, parent = Relay(args.config, args.name or _name(line)), read_address(args.relay, "--relay")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: relay.stop())
    with output.waits():
        output.say(f"machines join with: spar node --join '{line}'")
        said = relay.run(parent, door, [read_address(text, "--nodes") for text in args.nodes])
    output.say(f"relay {relay.name}: {said} after {relay.passed} messages of nodes")
    return {"relay": relay.name, "messages": relay.passed, "ended": said}


def _door(args: argparse.Namespace, folder: Path, opened: ExitStack) -> "tuple[Door, str]":
    """A bound socket with certificate and token, and the line for the parent."""
    from sparring.gateway.connections import bound
    from sparring.gateway.identity import is_loopback
    from sparring.nodes.link import Address, Door, Tokens, admission, read_place, server_tls, shown_host

    host, port = read_place(args.listen, "--listen")
    if args.plain and not is_loopback(host):
        wrong = "it would be reachable from elsewhere without encryption"
        raise ConfigError(wrong, where=f"--listen {args.listen} --plain", do="Leave out --plain")
    tokens = Tokens(folder)
    tls, mark = (None, "") if args.plain else server_tls(folder, host, args.cert, args.key)
    listening = opened.enter_context(bound(host, port, "--listen", "port 0"))
    address = Address(shown_host(host), listening.getsockname()[1], tokens.read(), not args.plain, mark)
    admit = admission(tokens, args.config.data) if args.relay else tokens.holder
    return Door(listening, tls, admit), str(address)


def _name(line: str) -> str:
    """This machine's, and the port where it listens: the same after a restart."""
    from sparring.nodes.link import read_address

    end = f":{read_address(line, '--listen').port}" if line else f"-{secrets.token_hex(3)}"
    return f"{socket.gethostname()[:40]}{end}"
