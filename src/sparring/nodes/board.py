"""What `spar nodes` reads and writes, as files in `<data>/nodes/`: the state of each parent, and orders to it.

parent-<pid>.json    written by a parent every second: its nodes, and what became of their contributions
orders.json          written by `spar nodes`: nodes that are drained or banned, read by parents every second
"""

import math
import os
import time
from pathlib import Path

import msgspec

from sparring.durable import replace_file
from sparring.errors import ConfigError, Missing


class NodeState(msgspec.Struct, kw_only=True):
    """One node as its parent sees it."""

    node: str
    peer: str  # its address
    holder: str = ""  # whose token it showed: "token", or an API key; "": the parent dialled it
    relay: str = ""  # behind which it is
    state: str = "connecting"  # connecting, relaying, building, working, draining, drained, lost, banned
    why: str = ""  # it was lost, drained or banned
    workers: int = 0
    version: int = -1  # that it had
    lag: int = 0  # versions of the parent since then
    steps: int = 0
    steps_per_s: float = 0.0
    merges: int = 0  # accepted contributions
    refused: dict[str, int] = {}  # reason → contributions
    received_bytes: int = 0
    sent_bytes: int = 0
    connections: int = 0
    seen_at_ms: int = 0

    def seen(self, steps_per_s: float) -> None:
        """It contributed, and said how fast it plays."""
        self.seen_at_ms = int(time.time() * 1000)
        self.steps_per_s = steps_per_s if math.isfinite(steps_per_s) else 0.0

    def leave(self, why: str) -> None:
        """Its connection ended: `why` says how, unless an order ended it, whose reason stays."""
        if self.state == "draining":
            self.state = "drained"
        elif self.state != "banned":
            self.state, self.why = "lost", why

    def refuse(self, reason: str) -> None:
        """Count a refusal."""
        self.refused = {**self.refused, reason: self.refused.get(reason, 0) + 1}


class ParentState(msgspec.Struct, kw_only=True):
    """One parent."""

    pid: int
    game: str
    algo: str
    merge: str
    codec: str
    version: int
    merges: int
    refused: dict[str, int]
    turned_away: dict[str, int]  # reason → connections that became no node
    nodes: list[NodeState]


class Orders(msgspec.Struct, kw_only=True):
    """What an operator decided, by the name of a node, or "key:ID" for every node with that API key."""

    banned: dict[str, str] = {}  # → why
    drained: list[str] = []


_read_state = msgspec.json.Decoder(ParentState).decode
_read_orders = msgspec.json.Decoder(Orders).decode


class Board:
    """The folder `<data>/nodes`."""

    def __init__(self, data: str | Path) -> None:
        self.folder = Path(data) / "nodes"
        self._seen: tuple[int, Orders] = (-1, Orders())  # when the orders were changed, and what they were

    def publish(self, state: ParentState) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"parent-{state.pid}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(state))  # worth no fsync: the next second's replaces it
        part.replace(path)

    def withdraw(self, pid: int) -> None:
        """The parent ended."""
        (self.folder / f"parent-{pid}.json").unlink(missing_ok=True)

    def parents(self) -> list[ParentState]:
        """Those that live; the files of others are removed."""
        found = []
        for path in sorted(self.folder.glob("parent-*.json")):
            try:
                state = _read_state(path.read_bytes())
            except (msgspec.DecodeError, FileNotFoundError):
                continue
            if _alive(state.pid):
                found.append(state)
            else:
                path.unlink(missing_ok=True)
        return found

    def orders(self) -> Orders:
        path = self.folder / "orders.json"
        try:
            changed = path.stat().st_mtime_ns
            if changed != self._seen[0]:
                self._seen = (changed, _read_orders(path.read_bytes()))
        except FileNotFoundError:
            self._seen = (-1, Orders())
        except msgspec.DecodeError as error:
            do = "Correct it, or remove it to allow all nodes"
            raise ConfigError(f"it does not read: {error}", where=str(path), do=do) from None
        return self._seen[1]

    def order(self, action: str, node: str, why: str = "") -> None:
        """ "drain", "ban" or "allow" a node."""
        orders = self.orders()
        banned, drained = dict(orders.banned), [one for one in orders.drained if one != node]
        if action == "allow" and node not in banned and node not in orders.drained:
            raise Missing(f"{node!r} is neither drained nor banned", where="spar nodes allow", do="See `spar nodes`")
        banned.pop(node, None)
        if action == "ban":
            banned[node] = why or "an operator banned it"
        elif action == "drain":
            drained.append(node)
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "orders.json", msgspec.json.encode(Orders(banned=banned, drained=drained)))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
