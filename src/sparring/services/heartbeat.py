"""Keeps what this process announced registered with its Consul agent: a TTL check, passed twice a second.

An agent that forgot a service, or has come back without it, is told of it anew by the next beat.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sparring.errors import Unreachable
from sparring.services.consul_client import PREFIX, Place
from sparring.services.discovery import Instance

BEAT_S, LAPSE_S = 0.5, 2.0  # an instance that missed its beats for so long is no longer routed to
FORGOTTEN = "1m"  # after which Consul drops one that stays silent; it takes no less
FIRST_S = 1.0  # that somebody waits for the agent's first answer
log = logging.getLogger("sparring.services")


class Heartbeat:
    """Keeps what this process announced registered with the agent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._kept: dict[str, dict[str, Any]] = {}  # id in Consul → how it is registered
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._said = ""

    def add(self, instance: Instance, here: str) -> "Registration":
        known_as = f"{PREFIX}{instance.service}-{instance.id}-{here}"
        first = threading.Event()
        with self._lock:
            self._kept[known_as] = _registration(instance, known_as, here)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, args=(first,), name="consul-beat", daemon=True)
                self._thread.start()
            else:
                first.set()
        self._wake.set()
        first.wait(FIRST_S)
        return Registration(self, known_as)

    def drop(self, known_as: str) -> None:
        with self._lock:
            self._kept.pop(known_as, None)
        agent = self._place.agent()
        with suppress(Unreachable):  # then Consul drops it by itself
            agent.put(f"/v1/agent/service/deregister/{quote(known_as)}")
        agent.close()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(3.0)

    def _beat(self, first: threading.Event) -> None:
        agent = self._place.agent()
        while not self._closed:
            self._wake.clear()
            with self._lock:
                kept = list(self._kept.items())
            wrong = ""
            for known_as, how in kept:
                try:
                    if agent.put(f"/v1/agent/check/pass/service:{quote(known_as)}"):  # it was forgotten, or is new
                        wrong = agent.put("/v1/agent/service/register", how)
                except Unreachable as error:
                    wrong = str(error)
                    break
            if wrong and wrong != self._said:
                log.warning("not registered: %s; tried again every %g s", wrong, BEAT_S)
            self._said = wrong
            first.set()
            self._wake.wait(BEAT_S)
        agent.close()


@dataclass(frozen=True, slots=True)
class Registration:
    """One that is kept."""

    beats: Heartbeat
    known_as: str

    def close(self) -> None:
        self.beats.drop(self.known_as)


def _registration(instance: Instance, known_as: str, here: str) -> dict[str, Any]:
    host, _, port = instance.address.removeprefix("tcp://").rpartition(":")
    again = ",".join(instance.idempotent)
    meta = {"id": instance.id, "pid": str(instance.pid), "key": instance.key, "host": instance.host, "place": here}
    meta["since"] = str(instance.since_s)
    for number, start in enumerate(range(0, len(again), 500)):  # a value has at most 512 characters
        meta[f"idempotent_{number:02}"] = again[start : start + 500]
    check = {"TTL": f"{LAPSE_S:g}s", "Status": "passing", "DeregisterCriticalServiceAfter": FORGOTTEN}
    return {
        "ID": known_as,
        "Name": PREFIX + instance.service,
        "Tags": ["sparring"],
        "Address": host.strip("[]"),
        "Port": int(port),
        "Meta": meta,
        "Check": check,
    }
