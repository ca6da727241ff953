"""The service `host`: how others on this machine see what a host runs, and change how many of it there are."""

from pathlib import Path
from typing import Any, Protocol

from sparring.errors import Refused
from sparring.services.discovery import Local
from sparring.services.register import register
from sparring.services.server import Server

NAME = "host"
MAX_COUNT = 1000


class Runs(Protocol):
    """What this asks a host."""

    def runs(self) -> list[dict[str, Any]]:
        """Each service: its name, how many instances it has, and of each how often it was started again."""
        ...

    def scale(self, name: str, count: int) -> Any: ...


class Control:
    """Its verbs."""

    def __init__(self, host: Runs) -> None:
        self._host = host

    @register(idempotent=True)
    def list(self) -> "list[dict[str, Any]]":
        """[{name, count, generations}, …]"""
        return self._host.runs()

    @register(idempotent=True)
    def scale(self, name: str, count: int) -> int:
        """So many instances from now on; how many there are."""
        if not 0 <= count <= MAX_COUNT:
            raise Refused(f"{count} instances", where=f"service {name}", do=f"Ask for 0 to {MAX_COUNT}")
        return len(self._host.scale(name, count))


def offer(host: Runs, folder: Path) -> Server:
    """Let others find the host in a folder of services (services/local.py)."""
    return Server(Control(host), Local(folder), name=NAME).start()
