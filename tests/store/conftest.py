"""The stores that every contract is held against."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keyspaces import emptied, migrated

from servers.cassandra_cluster import Cassandra


@pytest.fixture(scope="session")
def keyspace(worker_id: str) -> Callable[[Cassandra], str]:
    """The URL of a keyspace with tables, one for each worker of the run."""
    made: dict[str, str] = {}

    def url_of(server: Cassandra) -> str:
        name = f"contract_{worker_id}"
        if name not in made:
            made[name] = migrated(server.url(name))
        return made[name]

    return url_of


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path, keyspace: Callable[[Cassandra], str]) -> Iterator[str]:
    """A fresh store's URL, of each backend in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/experience.db"
        return
    chosen = keyspace(request.getfixturevalue("cassandra_server"))
    emptied(chosen)
    yield chosen
