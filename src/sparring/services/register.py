"""How a method becomes a verb of a service: it is decorated, and nothing else changes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from sparring.errors import ConfigError

Method = TypeVar("Method", bound=Callable[..., Any])
Full = Literal["wait", "refuse"]
HOW_BUSY = "?"  # a verb of every service: how many calls wait or are worked on, answered at once
_MARK = "__verb__"


@dataclass(frozen=True, slots=True)
class Verb:
    """What callers may ask of a service, and how it is done."""

    name: str
    response: bool = True  # False: the task is queued, and the caller is answered at once
    batch: int = 1  # callers that one call may serve
    wait_ms: float = 0.0  # that the first of them waits for the others, at most
    queue: int = 1024  # tasks and calls that may wait
    full: Full = "refuse"  # what happens to one more: its caller waits for a place, or is refused
    idempotent: bool = False  # twice does no more than once: it may be called again on another instance
    batch_from: str = ""  # the attribute of an instance that says `batch`


def register(
    *,
    response: bool = True,
    batch: int | str = 1,
    wait_ms: float = 0.0,
    queue: int = 1024,
    full: Full = "refuse",
    idempotent: bool = False,
) -> Callable[[Method], Method]:
    """Offer the method to callers in other processes.

    With `batch` > 1 the method is given arrays with one more axis in front, of up to so many callers, and answers
    with as many rows. As text it names the attribute of the instance that holds the number; where that is 1, the
    method is given arguments as they are. One instance does one thing at a time, so its methods need no lock.
    """
    batch_from = batch if isinstance(batch, str) else ""
    batch = 1 if isinstance(batch, str) else batch
    if batch < 1 or wait_ms < 0 or queue < 1 or full not in ("wait", "refuse") or (batch > 1 and not response):
        raise ConfigError(
            f"batch = {batch}, wait_ms = {wait_ms:g}, queue = {queue}, full = {full!r}, response = {response}",
            where="@register",
            do="Count batch and queue from 1, keep wait_ms at 0 or more, and batch only what responds",
        )

    def mark(method: Method) -> Method:
        verb = Verb(method.__name__, response, batch, wait_ms, queue, full, idempotent, batch_from)
        setattr(method, _MARK, verb)
        return method

    return mark


def verbs_of(service: type | object) -> dict[str, Verb]:
    """Every registered method by its name; a subclass inherits what it does not override."""
    kind = service if isinstance(service, type) else type(service)
    found = {name: getattr(getattr(kind, name), _MARK, None) for name in dir(kind) if not name.startswith("__")}
    verbs = {name: verb for name, verb in found.items() if verb is not None}
    for name, verb in verbs.items():
        if verb.batch_from and kind is not service:
            verbs[name] = replace(verb, batch=max(1, int(getattr(service, verb.batch_from))))
    return verbs


def service_name(service: object) -> str:
    """A service by its name, its class or an instance of it."""
    if isinstance(service, str):
        return service
    return service.__name__ if isinstance(service, type) else type(service).__name__
