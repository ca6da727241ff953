"""One instance among many callers in an event loop: one thing at a time, batches gathered, queues bounded.

What services/server.py does for messages this does for coroutines; the batching is the same.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.errors import Refused, WireError
from sparring.services.call_batch import joined, parted, shape_of
from sparring.services.errors import Overloaded, Told, told_of
from sparring.services.register import Verb, verbs_of

MAX_DEPTH = 64
PATIENCE_S = 0.005  # between two looks for a place in a full queue
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error. As an argument of another call it fails that one too."""

    told: Told


@dataclass(slots=True)
class _Line:
    """Those who wait for one verb."""

    verb: Verb
    waiting: int = 0  # queued or gathered, not yet begun
    gathered: list[tuple[Any, "asyncio.Future[Any]"]] = field(default_factory=list)


class Dispatcher:
    """Its instance's methods are called by one thread of its own."""

    def __init__(self, instance: object, name: str) -> None:
        self._instance, self._name = instance, name
        self._lines = {verb.name: _Line(verb) for verb in verbs_of(instance).values()}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.failures: deque[str] = deque(maxlen=20)  # stories of tasks that failed; nobody waited for them

    async def ask(self, verb: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """The verb's answer as plain data, or a Failure."""
        for given in (*args, *named.values()):
            if isinstance(given, Failure):
                return given
        try:
            line = self._line(verb)
            await self._place(line)
            if not line.verb.response:
                self._queue(line, args, named)
                return None
            if line.verb.batch > 1:
                return await self._gathered(line, (list(args), named))
            return await self._done(line, args, named)
        except Exception as error:  # noqa: BLE001  (whatever a user's method raises is told to who asked)
            return Failure(told_of(error, self._name))

    async def close(self) -> None:
        """Let the instance close what it opened; nothing is done any more afterwards."""
        close = getattr(self._instance, "close", None)
        if callable(close):
            await asyncio.get_running_loop().run_in_executor(self._worker, close)
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _line(self, verb: str) -> _Line:
        line = self._lines.get(verb)
        if line is None:
            known = ", ".join(sorted(self._lines))
            raise Refused(f"it has no verb {verb!r}", where=self._name, do=f"Ask for one of {known}")
        return line

    async def _place(self, line: _Line) -> None:
        while line.waiting >= line.verb.queue:
            if line.verb.full == "refuse":
                busy = f"{line.waiting} wait for {line.verb.name}"
                raise Overloaded(busy, where=self._name, do="Ask again later", limit="refuse")
            await asyncio.sleep(PATIENCE_S)

    async def _done(self, line: _Line, args: Sequence[Any], named: dict[str, Any]) -> Any:
        method = getattr(self._instance, line.verb.name)

        def do() -> Any:
            line.waiting -= 1
            return plain(method(*args, **named))

        line.waiting += 1
        return await asyncio.get_running_loop().run_in_executor(self._worker, do)

    def _queue(self, line: _Line, args: Sequence[Any], named: dict[str, Any]) -> None:
        method = getattr(self._instance, line.verb.name)

        def do() -> None:
            line.waiting -= 1
            try:
                method(*args, **named)
            except Exception as error:  # noqa: BLE001  (nobody waits for it: it is kept to be looked at)
                self.failures.append(str(told_of(error, self._name)["story"]))

        line.waiting += 1
        self._worker.submit(do)

    async def _gathered(self, line: _Line, given: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        line.gathered.append((given, answer))
        line.waiting += 1
        if len(line.gathered) >= line.verb.batch:
            self._release(line, line.gathered)
        elif len(line.gathered) == 1:
            loop.call_later(line.verb.wait_ms / 1000, self._release, line, line.gathered)
        return await answer

    def _release(self, line: _Line, gathered: list[tuple[Any, "asyncio.Future[Any]"]]) -> None:
        """What was gathered goes to work; callers whose arrays cannot be stacked go in groups."""
        if line.gathered is not gathered:
            return  # it was full before its time had come
        line.gathered = []
        groups: dict[Any, list[tuple[Any, asyncio.Future[Any]]]] = {}
        for given, answer in gathered:
            groups.setdefault(shape_of(given), []).append((given, answer))
        loop = asyncio.get_running_loop()
        for group in groups.values():
            self._worker.submit(self._do_group, line, group, loop)

    def _do_group(
        self, line: _Line, group: list[tuple[Any, "asyncio.Future[Any]"]], loop: asyncio.AbstractEventLoop
    ) -> None:
        line.waiting -= len(group)
        results: list[Any]
        try:
            args, named = joined([given for given, _ in group])
            answered = getattr(self._instance, line.verb.name)(*args, **named)
            results = [plain(one) for one in parted(answered, len(group), line.verb.name)]
        except Exception as error:  # noqa: BLE001  (whatever a user's method raises is told to those who asked)
            results = [Failure(told_of(error, self._name))] * len(group)
        loop.call_soon_threadsafe(_tell, [answer for _, answer in group], results)


def _tell(answers: "list[asyncio.Future[Any]]", results: list[Any]) -> None:
    for answer, result in zip(answers, results, strict=True):
        if not answer.done():
            answer.set_result(result)


def plain(tree: Any, depth: int = 0) -> Any:
    """What a message could carry, as it would arrive: tuples as lists, numbers as Python's own. WireError else."""
    if isinstance(tree, np.ndarray):
        if tree.dtype.hasobject:
            raise WireError(f"an array of {tree.dtype}", where="call", do="Send plain data and arrays")
        return tree
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, _PLAIN):
        return tree
    if depth < MAX_DEPTH and isinstance(tree, dict):
        return {name: plain(one, depth + 1) for name, one in tree.items()}
    if depth < MAX_DEPTH and isinstance(tree, list | tuple):
        return [plain(one, depth + 1) for one in tree]
    raise WireError(f"a {type(tree).__name__} has no place in a call", where="call", do="Send plain data and arrays")
