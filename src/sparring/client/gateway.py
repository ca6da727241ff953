"""What the client asks of the gateway over HTTP: uploads and their answers, specs, champions, files and actions."""

import logging
import ssl
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing, Refused, Unreachable
from sparring.games.spec import SeatSpec
from sparring.nets.chooser import RANDOM_ACTOR, ActRequest, Decision
from sparring.wire.champion import Signed
from sparring.wire.chunk import pack
from sparring.wire.ids import ModelId

MAX_MODEL_BYTES = 1 << 30
MAX_ANSWER_BYTES = 8 << 20  # of every other answer
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


class ErrorBody(msgspec.Struct, frozen=True):
    """What the client reads of the gateway's error object."""

    code: str = ""
    message: str = ""
    do: str = ""
    field: str = ""


class UploadBody(msgspec.Struct, frozen=True):
    """The JSON of an answer to an upload."""

    results: list[ChunkVerdict] = []
    error: ErrorBody = ErrorBody()
    sample_rate: float | None = None
    time_ms: int | None = None


class ActAnswer(msgspec.Struct, frozen=True):
    """The gateway's answer to an act request."""

    action: int | float | list[int | float]
    model: ModelId | None = None
    logp: float | None = None
    state: list[float] | None = None


_read_signed = msgspec.json.Decoder(Signed).decode
_read_action = msgspec.json.Decoder(ActAnswer).decode
_read_upload = msgspec.json.Decoder(UploadBody).decode


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do with a batch, and what else the gateway said."""

    action: BatchAction
    results: tuple[ChunkVerdict, ...] = ()
    reason: str = ""
    retry_after_s: float | None = None
    sample_rate: float | None = None
    time_ms: int | None = None


class Reply(NamedTuple):
    """An answer, whole."""

    status: int
    headers: httpx.Headers
    content: bytes


def tls(url: str, ca: str | Path | None) -> ssl.SSLContext | bool:
    """How the gateway's certificate is judged: by `ca`, or by the authorities that this machine trusts."""
    if not url.startswith("https://"):
        return False  # no TLS at all; loading every authority would cost 30 ms for nothing
    return True if ca is None else ssl.create_default_context(cafile=str(ca))


class Gateway:
    """One HTTP client for one connection; safe to call from several threads, none of which waits for another."""

    def __init__(self, url: str, game: str, token: str | None, timeout_s: float, ca: str | Path | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address", where="sparring.connect", do="Begin it with https://")
        self.url, self._path, self._ca = url.rstrip("/"), f"/v1/games/{quote(game, safe='')}", ca
        self._clock_ms = 0  # the gateway's clock less ours
        self.sample_rate = 1.0  # the share of episodes that it asks for
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, verify=tls(url, ca), trust_env=False)
        self._follow_redirects = True
        self.renew(token)

    def renew(self, token: str | None) -> None:
        """Use another token from now on."""
        self._http.headers.pop("Authorization", None)
        if token is not None:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def now_ms(self) -> int:
        """The gateway's clock as far as we know it, in Unix milliseconds."""
        return int(time.time() * 1000) + self._clock_ms

    def send(self, chunks: list[bytes]) -> Answer:
        """Upload encoded chunks; the answer to them, from which clock and sample rate are set. Unreachable where there
        is none."""
        headers = {"Content-Type": "application/x-spar-chunks"}
        before_ms = time.time() * 1000
        try:
            reply = self._ask("POST", f"{self._path}/chunks", content=pack(chunks), headers=headers)
        except httpx.TransportError as error:
            wrong = f"no answer from the gateway ({type(error).__name__}: {error})"
            raise Unreachable(wrong, where=self.url, do="It is tried again") from None
        answer = read_answer(reply.status, reply.content, len(chunks), reply.headers.get("retry-after"))
        if answer.time_ms is not None:
            # Halfway between request and answer; the error is half a round trip, small beside a wrong clock.
            self._clock_ms = int(answer.time_ms - (before_ms + time.time() * 1000) / 2)
        if answer.sample_rate is not None:
            self.sample_rate = answer.sample_rate
        return answer

    def spec(self) -> bytes:
        """The JSON that describes the game; Missing or Unreachable otherwise."""
        return self._get(self._path, params={}).content

    def champion(self, version: str, seat: int, etag: str) -> tuple[Signed | None, str]:
        """The manifest and its tag; None with the same tag where it did not change. Missing where there is none."""
        headers = {"If-None-Match": etag} if etag else {}
        params = {"version": version, "seat": str(seat)}
        reply = self._get(f"{self._path}/champion", params=params, headers=headers)
        if reply.status == 304:
            return None, etag
        try:
            return _read_signed(reply.content), reply.headers.get("etag", "")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"the champion does not read: {error}"
            raise Unreachable(wrong, where=self.url, do="It is asked for again") from None

    def strengths(self, version: str) -> Signed:
        """The game's ladder of strengths. Missing where there is none."""
        reply = self._get(f"{self._path}/strengths", params={"version": version})
        try:
            return _read_signed(reply.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"the strengths do not read: {error}"
            raise Unreachable(wrong, where=self.url, do="They are asked for again") from None

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, not yet verified; at most MAX_MODEL_BYTES of it.

        It comes from the address that the gateway redirects to, such as a bucket, or through the gateway itself. A
        redirect that does not answer, or leaves TLS, is not followed again: the operator may have the bucket where
        players cannot reach it.
        """
        path = f"/v1/models/{quote(model, safe='')}/{name}"
        try:
            if self._follow_redirects:
                with self._http.stream("GET", path, params={"direct": "1"}) as response:
                    if response.status_code != 307:
                        self._check(response.status_code, path)
                        return _body(response, path)
                    address = response.headers.get("location", "")
                try:
                    return self._redirected(address)
                except (httpx.HTTPError, httpx.InvalidURL, Unreachable) as error:
                    self._follow_redirects = False
                    log.info("models come through the gateway from now on: %s", error)
            with self._http.stream("GET", path) as response:
                self._check(response.status_code, path)
                return _body(response, path)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def act(self, index: int, seat: SeatSpec, request: ActRequest, model: ModelId | None, timeout_s: float) -> Decision:
        """The gateway's choice, Unreachable, or Refused where it sells no such style or cannot search here. A recurrent
        `state` goes back to the model that gave it, even if there is a new champion meanwhile."""
        body = {
            "observation": {name: np.asarray(value).tolist() for name, value in request.observation.items()},
            "legal": None if request.legal is None else np.asarray(request.legal, bool).tolist(),
            "seat": index,
            "strength": None if request.strength is None else float(request.strength),
        }
        if request.style is not None:
            body["style"] = request.style
        if request.search_ms is not None:
            body["search_ms"] = float(request.search_ms)
        if request.state is not None:
            body |= {"state": request.state.tolist(), "model": model}
        headers, path = {"Content-Type": "application/json"}, f"{self._path}/act"
        try:
            reply = self._ask("POST", path, content=msgspec.json.encode(body), headers=headers, timeout=timeout_s)
            answer = _read_action(reply.content) if reply.status == 200 else None
            wrong = f"it answered {reply.status}"
            said = _read_upload(reply.content).error if reply.status == 422 else ErrorBody()
            if said.field == "style":
                do = "What the game sells otherwise is taken"
                raise Refused(said.message, where=f"{self.url}{path}", do=do, field="style", value=request.style)
            if said.message and request.search_ms:
                raise Refused(said.message, where=f"{self.url}{path}", do=said.do, field=said.field)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError) as error:
            answer, wrong = None, f"no answer ({type(error).__name__})"
        if answer is None:
            do = "The model is asked without a search" if request.search_ms else "A random legal action is taken"
            raise Unreachable(wrong, where=f"{self.url}{path}", do=do)
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

    def _ask(self, method: str, path: str, **request: Any) -> Reply:
        """The answer, of which no more than MAX_ANSWER_BYTES are read: what answers may not be the gateway."""
        with self._http.stream(method, path, **request) as response:
            content = _body(response, f"{self.url}{path}", MAX_ANSWER_BYTES)
            return Reply(response.status_code, response.headers, content)

    def _get(self, path: str, *, params: dict[str, str], headers: dict[str, str] | None = None) -> Reply:
        try:
            reply = self._ask("GET", path, params=params, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        self._check(reply.status, path)
        return reply

    def _check(self, status: int, path: str) -> None:
        if status == 404:
            do = "Check its name and version; a game is served where `games` of the gateway's spar.toml lists it"
            raise Missing("the gateway has none", where=f"{self.url}{path}", do=do)
        if status not in (200, 304):
            raise Unreachable(f"it answered {status}", where=f"{self.url}{path}", do="It is asked again later")

    def _unreachable(self, error: Exception) -> Unreachable:
        wrong = f"no answer ({type(error).__name__})"
        return Unreachable(wrong, where=self.url, do="Check that `spar serve` runs there")

    def _redirected(self, address: str) -> bytes:
        named = address.partition("?")[0]  # the query holds a signature, which no message may show
        if not address.startswith("https://" if self.url.startswith("https://") else ("https://", "http://")):
            raise Unreachable(f"{named[:80]!r} is no place for models", where=self.url, do="Use https")
        # Another client: the gateway's token is for the gateway alone.
        with (
            httpx.Client(timeout=self._http.timeout, verify=tls(address, self._ca), trust_env=False) as plain,
            plain.stream("GET", address) as response,
        ):
            if response.status_code != 200:
                raise Unreachable(f"it answered {response.status_code}", where=named, do="Ask its operator")
            return _body(response, named)


def read_answer(status: int, content: bytes, chunks: int, retry_after: str | None = None) -> Answer:
    """The meaning of an answer to an upload of that many chunks."""
    try:
        body = _read_upload(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = UploadBody()  # a proxy in between may answer with anything
    reason = body.error.message or f"the answer was {status}"
    if len(body.results) == chunks:
        rate = body.sample_rate if body.sample_rate is not None and 0.0 <= body.sample_rate <= 1.0 else None
        return Answer(BatchAction.PER_CHUNK, tuple(body.results), reason, _seconds(retry_after), rate, body.time_ms)
    return Answer(_action(status, body.error.code), (), reason, _seconds(retry_after), None, body.time_ms)


def _action(status: int, code: str) -> BatchAction:
    if status == 410 or code == "gone":
        return BatchAction.PLAYER_ERASED
    if status in (401, 403, 404):
        return BatchAction.REJECTED_CALLER
    if status in (400, 409, 413, 415, 422):
        return BatchAction.HALVE
    return BatchAction.RETRY  # 408, 429, 5xx, and a 200 that is not the gateway's


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds, an hour at most; the form with a date is ignored."""
    try:
        return None if retry_after is None else min(3600.0, max(0.0, float(retry_after)))
    except ValueError:
        return None


def _body(response: httpx.Response, where: str, max_bytes: int = MAX_MODEL_BYTES) -> bytes:
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > max_bytes:
            raise Unreachable(f"it is above {max_bytes} bytes", where=where, do="Ask its operator")
        parts.append(part)
    return b"".join(parts)
