"""What the client asks of the gateway over HTTP: uploads and their answers, specs, champions, files and actions."""

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing, Unreachable
from sparring.games.spec import SeatSpec
from sparring.nets.chooser import RANDOM_ACTOR, ActRequest, Decision
from sparring.wire.champion import Signed
from sparring.wire.chunk import pack
from sparring.wire.ids import ModelId

MAX_MODEL_BYTES = 1 << 30
ACKNOWLEDGED = ("new", "had", "taken")
LATER = ("later", "busy", "failed", "quota")  # of one chunk: not its fault, so it is sent again

log = logging.getLogger("sparring.client")


class BatchAction(Enum):
    """What the client does with a batch after the answer to it."""

    PER_CHUNK = "each chunk has its verdict"
    RETRY = "send it again later"
    HALVE = "refused as a whole: send smaller batches until the chunk at fault is alone"
    REJECTED_CALLER = "the token is not accepted: keep spooling, try now and then"
    PLAYER_ERASED = "remove all that is spooled"


class ChunkVerdict(msgspec.Struct, frozen=True):
    """The verdict on one chunk."""

    verdict: str
    reason: str = ""
    field: str = ""
    value: Any = None
    limit: Any = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The gateway's error object."""

    code: str = ""
    message: str = ""
    field: str = ""
    value: Any = None
    limit: Any = None
    do: str = ""


class UploadBody(msgspec.Struct, frozen=True):
    """The JSON of an answer to an upload."""

    results: list[ChunkVerdict] = []
    error: ErrorBody | None = None
    sample_rate: float | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do with a batch, and what else the gateway said."""

    action: BatchAction
    results: tuple[ChunkVerdict, ...] = ()
    reason: str = ""
    retry_after_s: float | None = None
    sample_rate: float | None = None
    time_ms: int | None = None


def tls(url: str, ca: str | Path | None) -> ssl.SSLContext | bool:
    """How the gateway's certificate is judged: by `ca`, or by the authorities that this machine trusts."""
    if not url.startswith("https://"):
        return False  # no TLS at all; loading every authority would cost 30 ms for nothing
    return True if ca is None else ssl.create_default_context(cafile=str(ca))


def _authorize(http: httpx.Client, token: str | None) -> None:
    if token is None:
        http.headers.pop("Authorization", None)
    else:
        http.headers["Authorization"] = f"Bearer {token}"


class Gateway:
    """One HTTP client for the background threads of one connection; safe to call from several."""

    def __init__(self, url: str, game: str, token: str | None, timeout_s: float, ca: str | Path | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address", where="sparring.connect", do="Begin it with https://")
        self.url, self._game = url.rstrip("/"), quote(game, safe="")
        self._clock_ms = 0  # the gateway's clock less ours
        self.sample_rate = 1.0
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, verify=tls(url, ca), trust_env=False)
        self._download, self._ca = Download(self._http), ca
        self.renew(token)

    def renew(self, token: str | None) -> None:
        """Use another token from now on."""
        _authorize(self._http, token)

    def now_ms(self) -> int:
        """The gateway's clock as far as we know it, in Unix milliseconds."""
        return int(time.time() * 1000) + self._clock_ms

    def send(self, chunks: list[bytes]) -> Answer:
        """Upload encoded chunks; the answer to them. Unreachable where there is none."""
        try:
            response = self.upload(pack(chunks))
        except httpx.TransportError as error:
            wrong = f"no answer from the gateway ({type(error).__name__}: {error})"
            raise Unreachable(wrong, where=self.url, do="It is tried again") from None
        answer = read_answer(response.status_code, response.content, len(chunks), response.headers.get("retry-after"))
        self.set_sample_rate(answer.sample_rate)
        return answer

    def upload(self, packed: bytes) -> httpx.Response:
        """POST chunks; learns the gateway's clock from the answer."""
        headers = {"Content-Type": "application/x-spar-chunks"}
        before_ms = time.time() * 1000
        response = self._http.post(f"/v1/games/{self._game}/chunks", content=packed, headers=headers)
        server_ms = read_body(response.content).time_ms
        if server_ms is not None:
            # Halfway between request and answer; the error is half a round trip, small beside a wrong clock.
            self._clock_ms = int(server_ms - (before_ms + time.time() * 1000) / 2)
        return response

    def set_sample_rate(self, sample_rate: float | None) -> None:
        """The share of episodes that the gateway asks for from now on."""
        if sample_rate is not None:
            self.sample_rate = sample_rate

    def spec(self, version: str | None = None) -> bytes:
        """The JSON that describes the game; Missing or Unreachable otherwise."""
        params = {} if version is None else {"version": version}
        response = self._get(f"/v1/games/{self._game}", params=params)
        return response.content

    def champion(self, version: str, seat: int, etag: str) -> tuple[Signed | None, str]:
        """The manifest and its tag; None with the same tag where it did not change. Missing where there is none."""
        headers = {"If-None-Match": etag} if etag else {}
        params = {"version": version, "seat": str(seat)}
        response = self._get(f"/v1/games/{self._game}/champion", params=params, headers=headers)
        if response.status_code == 304:
            return None, etag
        try:
            return msgspec.json.decode(response.content, type=Signed), response.headers.get("etag", "")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"the champion does not read: {error}"
            raise Unreachable(wrong, where=self.url, do="It is asked for again") from None

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, not yet verified; at most MAX_MODEL_BYTES of it."""
        try:
            return self._download.get(f"/v1/models/{quote(model, safe='')}/{name}", self._check, self._ca)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str, *, params: dict[str, str], headers: dict[str, str] | None = None) -> httpx.Response:
        try:
            response = self._http.get(path, params=params, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        self._check(response.status_code, path)
        return response

    def _check(self, status: int, path: str) -> None:
        if status == 404:
            do = "Check its name and version; a game is served where `games` of the gateway's spar.toml lists it"
            raise Missing("the gateway has none", where=f"{self.url}{path}", do=do)
        if status not in (200, 304):
            raise Unreachable(f"it answered {status}", where=f"{self.url}{path}", do="It is asked again later")

    def _unreachable(self, error: Exception) -> Unreachable:
        wrong = f"no answer ({type(error).__name__})"
        return Unreachable(wrong, where=self.url, do="Check that `spar serve` runs there")


class Download:
    """A model's files: from the address that the gateway redirects to, such as a bucket, or through the gateway itself.

    The bytes are not verified here: the model's card says what they must be. A redirect that does not answer, or leaves
    TLS, is not followed again: the operator may have the bucket where players cannot reach it.
    """

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._follow_redirects = True

    def get(self, path: str, check: Callable[[int, str], None], ca: str | Path | None) -> bytes:
        """The file at the gateway's `path`; `check` raises for a status that is no success."""
        if self._follow_redirects:
            with self._http.stream("GET", path, params={"direct": "1"}) as response:
                if response.status_code != 307:
                    check(response.status_code, path)
                    return _body(response, path)
                address = response.headers.get("location", "")
            try:
                return self._redirected(address, ca)
            except (httpx.HTTPError, httpx.InvalidURL, Unreachable) as error:
                self._follow_redirects = False
                log.info("models come through the gateway from now on: %s", error)
        with self._http.stream("GET", path) as response:
            check(response.status_code, path)
            return _body(response, path)

    def _redirected(self, address: str, ca: str | Path | None) -> bytes:
        named = address.partition("?")[0]  # the query holds a signature, which no message may show
        if not address.startswith("https://" if self._http.base_url.scheme == "https" else ("https://", "http://")):
            raise Unreachable(f"{named[:80]!r} is no place for models", where=str(self._http.base_url), do="Use https")
        # Another client: the gateway's token is for the gateway alone.
        with (
            httpx.Client(timeout=self._http.timeout, verify=tls(address, ca), trust_env=False) as plain,
            plain.stream("GET", address) as response,
        ):
            if response.status_code != 200:
                raise Unreachable(f"it answered {response.status_code}", where=named, do="Ask its operator")
            return _body(response, named)


class ActAnswer(msgspec.Struct, frozen=True):
    """The gateway's answer to an act request."""

    action: int | float | list[int | float]
    model: ModelId | None = None
    logp: float | None = None
    state: list[float] | None = None


class ServerAct:
    """act="server": the gateway chooses, and the game waits at most `timeout_s` for it. Its own connections, so that
    uploads never delay it."""

    def __init__(self, url: str, game: str, token: str | None, timeout_s: float, ca: str | Path | None) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=timeout_s, verify=tls(url, ca), trust_env=False)
        self._path = f"/v1/games/{quote(game, safe='')}/act"
        self.renew(token)

    def renew(self, token: str | None) -> None:
        """Use another token from now on."""
        _authorize(self._http, token)

    def decide(self, index: int, seat: SeatSpec, request: ActRequest, model: ModelId | None = None) -> Decision:
        """The gateway's choice, or Unreachable. A recurrent `state` goes back to the model that gave it, even if there
        is a new champion meanwhile."""
        body = {
            "observation": {name: np.asarray(value).tolist() for name, value in request.observation.items()},
            "legal": None if request.legal is None else np.asarray(request.legal, bool).tolist(),
            "seat": index,
            "strength": request.strength,
        }
        if request.state is not None:
            body |= {"state": request.state.tolist(), "model": model}
        headers = {"Content-Type": "application/json"}
        try:
            response = self._http.post(self._path, content=msgspec.json.encode(body), headers=headers)
            if response.status_code != 200:
                raise self._failed(f"it answered {response.status_code}")
            answer = msgspec.json.decode(response.content, type=ActAnswer)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._failed(f"no answer ({type(error).__name__})") from None
        leaf = seat.action
        array = np.asarray(answer.action, leaf.dtype).reshape(leaf.shape)
        action = int(array) if leaf.kind == "discrete" else array
        actor = RANDOM_ACTOR if answer.model is None else f"model:{answer.model}"
        if answer.state is None:
            return Decision(action, actor, answer.logp)
        after = np.array(answer.state, np.float32)
        before = np.zeros_like(after) if request.state is None else request.state
        return Decision(action, actor, answer.logp, state_before=before, state_after=after)

    def close(self) -> None:
        self._http.close()

    def _failed(self, wrong: str) -> Unreachable:
        return Unreachable(wrong, where=f"{self._http.base_url}{self._path}", do="A random legal action is taken")


def read_answer(status: int, content: bytes, chunks: int, retry_after: str | None = None) -> Answer:
    """The meaning of an answer to an upload of that many chunks."""
    body = read_body(content)
    reason = body.error.message if body.error is not None and body.error.message else f"the answer was {status}"
    if len(body.results) == chunks:
        return Answer(
            BatchAction.PER_CHUNK, tuple(body.results), reason, _seconds(retry_after), _rate(body), body.time_ms
        )
    action = _action(status, body.error.code if body.error else "")
    return Answer(action, (), reason, _seconds(retry_after), None, body.time_ms)


def read_body(content: bytes) -> UploadBody:
    """The answer's JSON, or an empty one: a proxy in between may answer with anything."""
    try:
        return msgspec.json.decode(content, type=UploadBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UploadBody()


def _action(status: int, code: str) -> BatchAction:
    if status == 410 or code == "gone":
        return BatchAction.PLAYER_ERASED
    if status in (401, 403, 404):
        return BatchAction.REJECTED_CALLER
    if status in (400, 409, 413, 415, 422):
        return BatchAction.HALVE
    return BatchAction.RETRY  # 408, 429, 5xx, and a 200 that is not the gateway's


def _rate(body: UploadBody) -> float | None:
    rate = body.sample_rate
    return rate if rate is not None and 0.0 <= rate <= 1.0 else None


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds, an hour at most; the form with a date is ignored."""
    try:
        return None if retry_after is None else min(3600.0, max(0.0, float(retry_after)))
    except ValueError:
        return None


def _body(response: httpx.Response, where: str) -> bytes:
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > MAX_MODEL_BYTES:
            raise Unreachable(f"it is above {MAX_MODEL_BYTES} bytes", where=where, do="Ask its operator")
        parts.append(part)
    return b"".join(parts)
