"""How busy each instance of each service is; and a call to one instance of one's choice."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec

from sparring.errors import SparringError
from sparring.services.client import ClientContext, Connection, Target
from sparring.services.discovery import Discovery, Instance
from sparring.services.errors import error_of
from sparring.services.frames import CALL, ERROR
from sparring.services.register import HOW_BUSY

PATIENCE_S = 1.0
THREADS = 32


class InstanceStatus(msgspec.Struct, frozen=True):
    """An instance, and how many calls wait there or are worked on; None where it did not answer in time, or where
    calls are not ours (Ray's)."""

    instance: Instance
    outstanding: int | None


def call_instance(discovery: Discovery, instance: Instance, verb: str, *args: Any, deadline_s: float = 10.0) -> Any:
    """The answer of this very instance, whatever others offer its service. Errors are those of any call."""
    with closing(ClientContext(discovery)) as context:
        return _call(context, instance, verb, args, deadline_s)


def service_status(discovery: Discovery) -> list[InstanceStatus]:
    """Every instance by service and id. They are asked in parallel, each for a second at most."""
    found = [one for service in discovery.services() for one in discovery.instances(service)]
    found.sort(key=lambda one: (one.service, one.id))
    with closing(ClientContext(discovery)) as context, ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda one: InstanceStatus(one, _outstanding(context, one)), found))


def _outstanding(context: ClientContext, instance: Instance) -> int | None:
    if not instance.address.startswith(("ipc://", "tcp://")):
        return None
    try:
        answer = _call(context, instance, HOW_BUSY, (), PATIENCE_S)
    except SparringError:
        return None
    return answer if isinstance(answer, int) else None


def _call(context: ClientContext, instance: Instance, verb: str, args: tuple[Any, ...], deadline_s: float) -> Any:
    with closing(Connection(context, Target(instance), None)) as connection:
        answer = connection.call(CALL, verb, (args, {}), time.monotonic() + deadline_s)
    if answer.kind == ERROR:
        raise error_of(answer.body)
    return answer.body
