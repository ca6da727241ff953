"""The service `host`: how others see what a host runs, and change how many of it there are.

On its machine it is found in the host's own folder; with `seen`, a discovery's URL (consul://…), also where all meet.
"""

import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from sparring.errors import Refused
from sparring.hosts.private_folder import PrivateFolder
from sparring.services.discovery import Discovery, Local, default_folder, open_discovery
from sparring.services.register import register
from sparring.services.server import Server

NAME = "host"


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
        if count < 0:
            raise Refused(f"{count} instances", where=f"service {name}", do="Count from 0")
        return len(self._host.scale(name, count))


class Offer:
    """A host that others find until this is closed."""

    def __init__(self, host: Runs, folder: Path, seen: str = "") -> None:
        control, id = Control(host), os.urandom(4).hex()  # wherever it is found, it is one
        self._far: Discovery | None = None if is_local(seen) else open_discovery(seen)
        self._servers = [
            Server(control, one, name=NAME, id=id) for one in (Local(folder), self._far) if one is not None
        ]
        for server in self._servers:
            server.start()

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._far is not None:
            self._far.close()


def is_local(seen: str) -> bool:
    """Whether hosts that are seen there are those of this machine; on Ray, too, a host is found on its machine."""
    return urlsplit(seen).scheme in ("", "local", "ray")


def private_folder(seen: str) -> PrivateFolder:
    """A host's own folder, where `spar services` with that discovery looks for hosts of this machine."""
    path = urlsplit(seen).path if seen.startswith("local:") else ""
    return PrivateFolder(Local(Path(path)).folder if path.strip("/") else default_folder())
