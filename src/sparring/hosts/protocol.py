"""A host runs services: it starts as many instances as asked, keeps them alive, and hands out ways to call them.

`local://` is this machine's processes (local.py), `ray://auto` and `ray://host:port` a Ray cluster (ray/). A service
is a class with @register methods (services/register.py) that can be imported by its name; what its instances are given
is plain data. The same topology runs on every host, because it knows nothing but what stands here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

MAX_COUNT = 1000  # instances of one service
# The constructor's arguments: the same for all, or one mapping for each, or asked for with an instance's number and how
# many there will be.
Given = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one instance needs. Ray places by it; this machine's processes ignore it."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0  # 0: unlimited
    place: Literal["spread", "pack", "here"] = "spread"  # over nodes, on few, or on the caller's own node
    restarts: int = -1  # how often a dead one is started again; -1: always
    least: int = 0  # how many there may be, when others scale
    most: int = MAX_COUNT


Kind = Literal["started", "died", "restarted", "gave up", "stopped"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an instance."""

    kind: Kind
    service: str
    index: int
    why: str = ""  # of a death: exit code or signal, and the last lines that it wrote
    at_s: float = 0.0  # seconds since the epoch


class Pending(Protocol):
    """An answer under way. As an argument of another call (itself, not inside of one) it stands for its value, which
    on Ray then travels from the one instance to the other without passing here. Where it failed, so does that call."""

    here: bool  # whether its value is wanted here; set False for one that is only handed on: nothing is fetched for it

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once; where it is not wanted here, whether it is anywhere."""
        ...

    def result(self, seconds: float | None = None) -> Any:
        """The answer; CallTimeout, CallLost or the callee's error, as of a Solver. None: the host's own deadline. After
        CallTimeout it is still under way, and may be asked for again."""
        ...


class Shared(Protocol):
    """A large value (weights) put once for each machine; as an argument (itself, not inside of one) it stands
    for the value, whose arrays are read-only."""


class Handle(Protocol):
    """One instance. It outlives the process: after a restart it leads to the successor."""

    @property
    def index(self) -> int: ...

    @property
    def generation(self) -> int:
        """How often it was started again, as far as is known here."""
        ...

    def ask(self, verb: str, *args: Any, **named: Any) -> Pending:
        """Begin a call; never waits. Calls of one caller to one instance begin in their order. What it is given may
        be changed afterwards. Of a response=False verb the answer is None, once the task is queued."""
        ...

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        """Queue a task (response=False), and wait until it is queued (Overloaded, CallTimeout, CallLost); a lost one is
        not sent again. To wait later, `ask`."""
        ...


class Host(Protocol):
    """Closing it, or the end of its process, however it comes, ends all that it started."""

    url: str
    discovery: str  # the URL by which its services find each other

    def start(
        self,
        service: type,
        name: str,
        count: int,
        needs: Resources,
        given: Given,
    ) -> list[Handle]:
        """`count` instances of the class, found by others as `name`. Each instance is also given `index` and
        `generation` where its constructor has parameters so named."""
        ...

    def scale(self, name: str, count: int) -> list[Handle]:
        """So many from now on: the last leave, new ones are given what the first was, or what `given` says of them.
        Refused beyond what its needs say."""
        ...

    def renew(self, name: str, index: int) -> Handle:
        """Another in the place of one that hangs or was given up: that is ended by force, and this is given what it
        was. Handles of the old one lead nowhere."""
        ...

    def handles(self, name: str) -> list[Handle]:
        """Those there are now: others may scale too (`spar services scale`, see control.py)."""
        ...

    def share(self, value: Any) -> Shared:
        """Put a value where every instance can read it; it is given back when this and all uses of it are gone."""
        ...

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        """Those that are done, at the latest after so long; at once where one is."""
        ...

    def watch(self) -> Iterator[Event]:
        """What happened since this was last asked; ends where nothing more has."""
        ...

    def close(self) -> None:
        """Stop every instance: asked first, killed after 3 s."""
        ...
