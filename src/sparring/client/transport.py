"""How recorded chunks leave a game: to a gateway over HTTP, or, from trusted servers, into a stream (kinesis://…).

Without a gateway the player must be given as a pseudonym, and the sink makes the checks. A stream carries no models:
they come from the gateway that `gateway=` names, if any.
"""

import logging
import threading
import time

from sparring.client.gateway import Answer, BatchAction, ChunkVerdict, Gateway
from sparring.client.settings import Settings
from sparring.errors import ConfigError, Missing, SparringError, StoreFailed, Unreachable, WireError
from sparring.stream import BACKENDS, open_stream
from sparring.stream.protocol import Stream
from sparring.wire.champion import Signed
from sparring.wire.chunk import Chunk, decode
from sparring.wire.ids import ModelId, is_pseudonym

SETTING = "sparring.connect"

log = logging.getLogger("sparring.client")


def is_stream(url: str) -> bool:
    """Whether `url` names a stream and no gateway."""
    return url.partition("://")[0] in BACKENDS


class StreamTransport:
    """A stream, and the gateway that models come from where there is one. Used like a `Gateway`."""

    sample_rate = 1.0  # a stream takes every episode

    def __init__(self, url: str, game: str, player: str | None, settings: Settings) -> None:
        if player is not None and not is_pseudonym(player):
            do = "Give 32 hex digits, such as an HMAC of the name under a secret of yours; names are never kept"
            raise ConfigError("the player of a stream is a pseudonym", where=f"{SETTING}(player=…)", do=do)
        if settings.gateway is None and (settings.act == "server" or settings.token is not None):
            setting = 'act="server"' if settings.act == "server" else "token"
            do = "Give gateway=, the address of `spar serve`, too"
            raise ConfigError(f"{setting} is a gateway's, and a stream is none", where=SETTING, do=do)
        self.url, self._lock = url, threading.Lock()
        self._stream: Stream | None = None
        self._gateway: Gateway | None = None
        if settings.gateway is not None:
            self._gateway = Gateway(settings.gateway, game, settings.token, settings.timeout_s, settings.ca)
        try:
            self._opened()
        except Unreachable as error:  # the game starts all the same; the log says if the address is wrong
            log.warning("%s What is recorded waits in the spool", error)
        except SparringError:
            self.close()
            raise

    def send(self, chunks: list[bytes]) -> Answer:
        """Into the stream; each is "taken", or all are to be sent again."""
        results, sound = [], []
        for data in chunks:
            found = _decoded(data)
            results.append(found if isinstance(found, ChunkVerdict) else ChunkVerdict("taken"))
            sound += [found] if isinstance(found, Chunk) else []
        try:
            self._opened().append(sound)
        except (Unreachable, StoreFailed) as error:
            return Answer(BatchAction.RETRY, reason=str(error).rstrip("."))
        except SparringError as error:  # a stream or a permission that was there when it was opened
            return Answer(BatchAction.REJECTED_CALLER, reason=str(error).rstrip("."))
        return Answer(BatchAction.PER_CHUNK, tuple(results))

    def spec(self, version: str | None = None) -> bytes:
        return self._models().spec(version)

    def champion(self, version: str, seat: int, etag: str) -> tuple[Signed | None, str]:
        return self._models().champion(version, seat, etag)

    def file(self, model: ModelId, name: str) -> bytes:
        return self._models().file(model, name)

    def now_ms(self) -> int:
        """This machine's clock, or the gateway's as far as it is known."""
        return int(time.time() * 1000) if self._gateway is None else self._gateway.now_ms()

    def renew(self, token: str | None) -> None:
        """Another key for the gateway; a stream's credentials are renewed where boto3 finds them."""
        if self._gateway is not None:
            self._gateway.renew(token)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._gateway is not None:
            self._gateway.close()

    def _opened(self) -> Stream:
        with self._lock:
            if self._stream is None:
                self._stream = open_stream(self.url, setting=SETTING)
            return self._stream

    def _models(self) -> Gateway:
        if self._gateway is None:
            do = "Give gateway=, the address of `spar serve`, too"
            raise Missing("models do not come by a stream", where=SETTING, do=do)
        return self._gateway


def _decoded(data: bytes) -> Chunk | ChunkVerdict:
    try:
        return decode(data)
    except WireError as error:
        return ChunkVerdict("refused", error.wrong)


Transport = Gateway | StreamTransport


def open_transport(url: str, game: str, player: str | None, settings: Settings) -> Transport:
    """The gateway or the stream at `url`."""
    if is_stream(url):
        return StreamTransport(url, game, player, settings)
    if settings.gateway is not None:
        raise ConfigError("gateway= goes with a stream", where=SETTING, do="Give its address first")
    return Gateway(url, game, settings.token, settings.timeout_s, settings.ca)
