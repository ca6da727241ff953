"""What has to be closed, as a context manager."""

from typing import Protocol, Self


class Closable(Protocol):
    """`with` closes it at the end of its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what it holds; it is not used afterwards."""
