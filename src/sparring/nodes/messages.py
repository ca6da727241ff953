"""The messages between a parent and a node, as tagged unions in msgpack, and the terms on which both must agree.

    both      Hello                who speaks, and which protocol
    parent    Job                  the terms, and what to learn: data alone, no code
    node      Agreed               the terms as the node made them itself of the job
    parent    Weights              whole, the first time
    node      Contribution   ┐     what it learned
    parent    Weights        ┘     what became of it, and the newest weights; again and again
    node      Idle                 instead of a contribution, while there is nothing to contribute
    parent    Lease          ┐     instead of both, where experience is contributed
    node      Experience     ┘
    either    Refusal              a sentence, before the connection is closed
    relay     Batch          ┐     after Hello, Job and Agreed: the messages of all nodes behind it, over one connection
    parent    Batch          ┘     (relay.py); the weights of one version once for all of them

Nothing in a message is executed, imported or unpickled (see `child.py` for what a node accepts).
"""

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec

from sparring.errors import WireError
from sparring.games.spec import GameSpec
from sparring.nets.shapes import parameters
from sparring.nodes.codecs import Layout
from sparring.wire.network import NetworkSpec

PROTOCOL = 1
MAX_RETURNS = 1_000  # of a contribution: the newest
HEAD_BYTES = 64 << 10  # of a message, beside its weights
MAX_PARTS = 1_024  # of a batch
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]
Peer = Annotated[str, msgspec.Meta(max_length=100)]
NAME = re.compile(r"[\w.:-]{1,64}")
Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First on every connection, from both sides. Later protocols may add fields, never change these."""

    protocol: int
    role: Literal["parent", "node", "relay"]
    node: Name  # of a node: the same after each reconnection
    secret: Text = ""  # known to that node alone: no other takes its place
    workers: Count = 0
    run: Text = ""  # the last run that it worked for, and the version that it had of it
    version: int = -1
    max_bytes: Count = 0  # of a parent: no message to it may be larger


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What both sides must have alike before weights travel."""

    game: Text
    game_version: Text
    spec_hash: Text
    network: NetworkSpec  # as data: the node builds its learner's network of it
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    byte_length: Count
    codec: Text
    merge: Text


class Job(msgspec.Struct, frozen=True, tag="job", forbid_unknown_fields=True):
    """What a node is asked to learn. `plan` is the run's plan as plain data (learn/plan.py), of which the node builds
    game and learner itself, with the network that the terms describe."""

    run: Text
    game: Text  # its id, by which it is opened; the terms name its spec
    terms: Terms
    plan: dict[str, Any]
    seed: Count
    exchange_s: float
    max_staleness: Count
    momentum: float = 0.0
    lease_ticks: Count = 0  # of each game, where experience is contributed; 0: weights are


class Agreed(msgspec.Struct, frozen=True, tag="agreed", forbid_unknown_fields=True):
    terms: Terms


class Weights(msgspec.Struct, frozen=True, tag="weights", forbid_unknown_fields=True):
    """The parent's weights: whole as float32, or by the codec against those that the node had before; empty where
    the node has them."""

    version: Count
    payload: bytes
    whole: bool = False
    refused: Text = ""  # why the last contribution did not count
    missed: Count = 0  # versions since the one that the node had when it lost its parent
    leave: Text = ""  # why the node is to stop: the run is done, or it was drained


class Lease(msgspec.Struct, frozen=True, tag="lease", forbid_unknown_fields=True):
    """What to play, once, with the weights that come with it (leases.py)."""

    lease: Count
    seed: Count
    model: Text  # hash of the weights, as the node decodes them
    weights: Weights
    epsilon: float = 0.0  # how often it explores, where the algorithm has such a chance


class Experience(msgspec.Struct, frozen=True, tag="experience", forbid_unknown_fields=True):
    """What was played with a lease: the columns of a rollout or of a block of steps, compressed."""

    lease: Count
    model: Text
    payload: bytes
    steps_per_s: float = 0.0


class Contribution(msgspec.Struct, frozen=True, tag="contribution", forbid_unknown_fields=True):
    """What a node learned since `version`, and what it did since its last contribution."""

    version: Count
    payload: bytes
    steps: Count = 0
    updates: Count = 0
    episodes: Count = 0
    returns: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_RETURNS)] = ()
    steps_per_s: float = 0.0


class Idle(msgspec.Struct, frozen=True, tag="idle", forbid_unknown_fields=True):
    """A node that learned nothing yet, and lives."""


class Refusal(msgspec.Struct, frozen=True, tag="refusal", forbid_unknown_fields=True):
    sentence: Text


class Opened(msgspec.Struct, frozen=True, tag="opened", forbid_unknown_fields=True):
    """A node came to the relay: its messages are those of that channel."""

    channel: Count
    peer: Peer


class Through(msgspec.Struct, frozen=True, tag="through", forbid_unknown_fields=True):
    """A message to or from the node of a channel, as it was encoded."""

    channel: Count
    frame: bytes
    weights: bool = False  # to a node: the relay puts the shared weights in


class Closed(msgspec.Struct, frozen=True, tag="closed", forbid_unknown_fields=True):
    """The node of a channel is gone, or the parent is done with it."""

    channel: Count
    why: Text = ""


class Shared(msgspec.Struct, frozen=True, tag="shared", forbid_unknown_fields=True):
    """Weights for all nodes behind a relay: whole, or by the codec against those that it had before."""

    payload: bytes
    whole: bool = False


Part = Opened | Through | Closed | Shared


class Batch(msgspec.Struct, frozen=True, tag="batch", forbid_unknown_fields=True):
    """What went on behind a relay; empty ones show that both sides live."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    leave: Text = ""  # why the relay is to stop


Message = Hello | Job | Agreed | Weights | Contribution | Idle | Lease | Experience | Refusal | Batch
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
encode = msgspec.msgpack.Encoder().encode

# What each field of the terms is called in a refusal.
_WORDS = {
    "game": "the game",
    "game_version": "the game's version",
    "spec_hash": "the game's spec",
    "network": "the network",
    "layout": "the layout of the weights",
    "byte_length": "the weights' length in bytes",
    "codec": "the codec",
    "merge": "the merge rule",
}


def decode(frame: bytes | str) -> Message:
    """A message, or a WireError."""
    if isinstance(frame, str):
        raise WireError("it is text", where="message of a node", do="Send msgpack; see docs/nodes.md")
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        do = "Use the same version of Sparring on both sides"
        raise WireError(f"it does not read: {error}", where="message of a node", do=do) from None


def terms_of(spec: GameSpec, network: NetworkSpec, codec: str, merge: str) -> Terms:
    """The terms for that game and network."""
    layout = Layout(tuple(parameters(network).items()))
    return Terms(
        game=spec.id,
        game_version=spec.version,
        spec_hash=spec.hash,
        network=network,
        layout=layout.shapes,
        byte_length=layout.byte_length,
        codec=codec,
        merge=merge,
    )


def hello_disagreement(theirs: Hello, role: str) -> str:
    """Why such a peer cannot be talked to; "": it can."""
    if theirs.protocol != PROTOCOL:
        older = "it" if theirs.protocol < PROTOCOL else "this side"
        return f"it speaks protocol {theirs.protocol}, this side {PROTOCOL}: update Sparring on the side of {older}"
    if theirs.role == role or "parent" not in (theirs.role, role):
        sides = f"both sides are a {role}" if theirs.role == role else f"a {role} met a {theirs.role}"
        return f"{sides}: one must be `spar node`, the other `spar train`"
    return ""


def disagreement(parent: Terms, node: Terms) -> str:
    """The first term on which they differ, as a sentence; "": they agree."""
    for name, words in _WORDS.items():
        ours, theirs = getattr(parent, name), getattr(node, name)
        if ours != theirs:
            if name == "layout":
                differing = sorted(set(ours) ^ set(theirs))[:2]
                return f"{words} differs: {', '.join(f'{key} {list(shape)}' for key, shape in differing)}"
            return f"{words} differs: the parent has {_short(ours)}, the node {_short(theirs)}"
    return ""


def _short(value: object) -> str:
    is_network = isinstance(value, NetworkSpec)
    text = hashlib.sha256(msgspec.json.encode(value)).hexdigest() if is_network else str(value)
    return text[:12] if len(text) == 64 else text[:80]
