"""Bots for games that learn from the people who play."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.client.connection import Connection as Connection
    from sparring.client.connection import connect as connect

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazy: `import sparring` costs nothing, and a server or trainer never loads the client.
    if name in ("connect", "Connection"):
        from sparring.client import connection

        return getattr(connection, name)
    raise AttributeError(f"module 'sparring' has no attribute {name!r}")
