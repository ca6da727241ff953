"""How what is recorded leaves a game: to a gateway over HTTP, or straight into a stream."""

from typing import Protocol

from sparring.client.upload_answer import Answer
from sparring.wire.champion import Signed
from sparring.wire.ids import ModelId


class Transport(Protocol):
    """What the background threads of a connection ask; safe to call from several."""

    url: str
    sample_rate: float

    def send(self, chunks: list[bytes]) -> Answer:
        """Carry encoded chunks there; what became of them. Unreachable where nobody answered."""
        ...

    def spec(self, version: str | None = None) -> bytes:
        """The JSON about the game; Missing or Unreachable otherwise."""
        ...

    def champion(self, version: str, seat: int, etag: str) -> tuple[Signed | None, str]:
        """The manifest and its tag; None with the same tag where it did not change. Missing where none reigns."""
        ...

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, not yet verified."""
        ...

    def now_ms(self) -> int:
        """The clock that episodes are named by, in Unix milliseconds."""
        ...

    def renew(self, token: str | None) -> None:
        """Use another key from now on."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...
