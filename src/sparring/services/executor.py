"""What an instance does with its requests: queues them by verb, gathers batches, and works on one thing at a time, in a
thread. A Server feeds it with messages (server.py), an actor on Ray with coroutines (hosts/ray/actor.py)."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.errors import Refused, WireError
from sparring.services.errors import Overloaded, ShuttingDown, traceback_of
from sparring.services.register import Verb, verbs_of

QUICK_S = 0.0005  # a verb that took no longer in each of its last calls is done without handing it to the thread
QUICK_CALLS = 4
MUCH_S = 0.02  # so slow is the verb itself, and not a busy machine
STOP_S = 1.0  # for what is at work
log = logging.getLogger("sparring.services")
Reply = Callable[[Any, BaseException | None], None]  # is given the result, or the error


@dataclass(slots=True)
class Request:
    """One caller's request."""

    args: Any
    named: Any
    until: float  # when its caller stops waiting
    reply: Reply | None  # None: a task, which is not answered


@dataclass(slots=True)
class VerbQueue:
    """The requests of one verb, and how quick it is."""

    verb: Verb
    method: Any
    waiting: int = 0  # requests that have not begun
    open: dict[Any, "_Group"] = field(default_factory=dict)  # batches that still gather, by the shape of arguments
    quick: int = 0  # calls in a row that were
    doubted: bool = False  # its last call was not
    is_quick: bool = False  # the thread that took a call does it: to hand it over would cost more than the work

    def took(self, seconds: float) -> None:
        """Of its last call. A quick verb that was slow once stays quick, as another process may have had the core.
        Twice in a row, or by much, is the verb itself."""
        slow = seconds >= QUICK_S
        if not slow:
            self.quick += 1
        elif self.doubted or self.quick < QUICK_CALLS or seconds > MUCH_S:
            self.quick = 0
        self.doubted = slow
        self.is_quick = self.quick >= QUICK_CALLS and self.verb.response


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that are done by one call."""

    queue: VerbQueue
    due: float  # when it is worked on, full or not
    requests: list[Request] = field(default_factory=list)

    def is_ready(self, now: float) -> bool:
        return len(self.requests) >= self.queue.verb.batch or now >= self.due


class Executor:
    """`after` is called in the thread when the requests of a call have been replied to."""

    def __init__(self, instance: object, name: str, after: Callable[[], object] = lambda: None) -> None:
        self.name, self._after = name, after
        self.queues = {name: VerbQueue(verb, getattr(instance, name)) for name, verb in verbs_of(instance).items()}
        self.closing = self._stopping = False
        self._groups: deque[_Group] = deque()  # bounded by each verb's queue
        self._working = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"{name}-work", daemon=True)
        self._thread.start()

    def queue_of(self, verb: str) -> VerbQueue:
        queue = self.queues.get(verb)
        if queue is None:
            known = ", ".join(sorted(self.queues))
            raise Refused(f"it has no verb {verb!r}", where=self.name, do=f"Ask for one of {known}")
        return queue

    def is_idle(self) -> bool:
        return not (self._groups or self._working or self.closing)

    def outstanding(self) -> int:
        """Requests that wait or are worked on."""
        return sum(queue.waiting for queue in self.queues.values()) + self._working

    def submit(self, queue: VerbQueue, request: Request) -> None:
        """Queue a request; Overloaded where the queue is full, ShuttingDown where the instance is about to end."""
        verb = queue.verb
        if self.closing:
            raise self.shutting_down()
        if queue.waiting >= verb.queue:
            do = "Wait for a place" if verb.full == "wait" else "Ask again later"
            raise Overloaded(f"{queue.waiting} wait for {verb.name}", where=self.name, do=do, limit=verb.full)
        gathers = verb.batch > 1 and request.reply is not None
        shape = shape_of((request.args, request.named)) if gathers else None
        with self._changed:
            queue.waiting += 1
            group = queue.open.get(shape) if gathers else None
            if group is None:
                group = _Group(queue, time.monotonic() + verb.wait_ms / 1000 if gathers else 0.0)
                self._groups.append(group)
                if gathers:
                    queue.open[shape] = group
                self._changed.notify_all()
            group.requests.append(request)
            if not gathers or len(group.requests) < verb.batch:
                return
            if not queue.is_quick or self._working or self._groups[0] is not group:
                del queue.open[shape]
                self._changed.notify_all()
                return
            self._begin(group)
        self._do(group)  # here: to hand a quick batch to the thread would cost more than the work
        with self._changed:
            self._working = False
            if self._groups or self.closing:
                self._changed.notify_all()

    def shutting_down(self) -> ShuttingDown:
        return ShuttingDown(f"{self.name} is about to end", where=self.name, do="Ask another one")

    def close(self, drain_s: float) -> None:
        """Take no more; work for so long on what was taken, and refuse the rest."""
        self.closing = True
        with self._changed:
            self._changed.wait_for(lambda: not self._groups and not self._working, drain_s)
            self._stopping = True
            left = [request for group in self._groups for request in group.requests]
            self._groups.clear()
            self._changed.notify_all()
        for request in left:
            if request.reply is not None:
                request.reply(None, self.shutting_down())
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while (group := self._next()) is not None:
            self._do(group)
            del group  # its arrays belong to callers
            self._after()

    def _next(self) -> _Group | None:
        """The first group that is ready; waits for one. None when this is closed."""
        with self._changed:
            self._working = False
            self._changed.notify_all()  # `close` waits for that
            while not self._stopping:
                if self._working or not self._groups:
                    self._changed.wait()
                    continue
                now = time.monotonic()
                group = next((one for one in self._groups if one.is_ready(now)), None)
                if group is not None:
                    self._begin(group)
                    return group
                self._changed.wait(min(one.due for one in self._groups) - now)
        return None

    def _begin(self, group: _Group) -> None:
        """Take it for this thread to work on; another one waits until it is done."""
        queue = group.queue
        self._groups.remove(group)
        queue.waiting -= len(group.requests)
        queue.open = {shape: one for shape, one in queue.open.items() if one is not group}
        self._working = True

    def _do(self, group: _Group) -> None:
        begun, verb, method = time.monotonic(), group.queue.verb, group.queue.method
        requests = [one for one in group.requests if one.until > begun or one.reply is None]
        if not requests:
            return
        try:
            if verb.batch > 1:
                args, named = joined([(one.args, one.named) for one in requests])
                results = parted(method(*args, **named), len(requests), verb.name)
            else:
                results = [method(*requests[0].args, **requests[0].named)]
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a method raises is told to its callers)
            for request in requests:
                if request.reply is None:  # no caller waits for it
                    log.warning("a task %s of %s failed: %s", verb.name, self.name, traceback_of(error))
                else:
                    request.reply(None, error)
            return
        group.queue.took(time.monotonic() - begun)
        for request, result in zip(requests, results, strict=True):
            if request.reply is not None:
                request.reply(result, None)


def shape_of(tree: Any) -> Any:
    """What two callers must have alike to be served together: structure, dtypes and shapes; numbers may differ."""
    if isinstance(tree, dict):
        return frozenset((name, shape_of(value)) for name, value in tree.items())
    if isinstance(tree, list | tuple):
        return tuple(map(shape_of, tree))
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape
    return type(tree)


def joined(trees: Sequence[Any]) -> Any:
    """Trees of one shape as one: arrays and numbers get an axis in front, text and the like become lists."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: joined([tree[name] for tree in trees]) for name in first}
    if isinstance(first, list | tuple):
        return [joined(parts) for parts in zip(*trees, strict=True)]
    if isinstance(first, np.ndarray):
        return np.stack(trees)
    if isinstance(first, bool | int | float):
        return np.array(trees)
    return list(trees)


def parted(result: Any, count: int, verb: str) -> list[Any]:
    """One result for each of `count` callers: rows of arrays and lists, None for all where there is none."""
    if result is None:
        return [None] * count
    if isinstance(result, dict):
        parts = {name: parted(value, count, verb) for name, value in result.items()}
        return [{name: values[row] for name, values in parts.items()} for row in range(count)]
    if isinstance(result, tuple):
        columns = [parted(value, count, verb) for value in result]
        return [[column[row] for column in columns] for row in range(count)]
    if isinstance(result, list | np.ndarray) and len(result) == count:
        return [np.asarray(row) if isinstance(result, np.ndarray) else row for row in result]
    given = f"{len(result)} rows" if isinstance(result, list | np.ndarray) else f"a {type(result).__name__}"
    raise WireError(f"it answered {count} callers with {given}", where=verb, do="Give one row for each caller")
