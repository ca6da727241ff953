"""What is asked of the gateway over HTTP, and what its answers teach: its clock and its sample rate."""

import ssl
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec

from sparring.client.download import Download
from sparring.client.upload_answer import Answer, read_body, understand
from sparring.errors import ConfigError, Missing, Unreachable
from sparring.wire.champion import Signed
from sparring.wire.chunk import pack
from sparring.wire.ids import ModelId


def tls(url: str, ca: str | Path | None) -> ssl.SSLContext | bool:
    """How the gateway's certificate is judged: by `ca`, or by the authorities that this machine trusts."""
    if not url.startswith("https://"):
        return False  # no TLS at all; loading every authority would cost 30 ms for nothing
    return True if ca is None else ssl.create_default_context(cafile=str(ca))


class Gateway:
    """One HTTP client for the background threads of one connection; safe to call from several."""

    def __init__(self, url: str, game: str, token: str | None, timeout_s: float, ca: str | Path | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address", where="sparring.connect", do="Begin it with https://")
        self.url, self._game = url.rstrip("/"), quote(game, safe="")
        self._clock_ms = 0  # the gateway's clock less ours
        self.sample_rate = 1.0
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, verify=tls(url, ca), trust_env=False)
        self._download, self._ca = Download(self._http, tls), ca
        self.renew(token)

    def renew(self, token: str | None) -> None:
        """Use another key from now on."""
        if token is None:
            self._http.headers.pop("Authorization", None)
        else:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def now_ms(self) -> int:
        """The gateway's clock as far as we know it, in Unix milliseconds."""
        return int(time.time() * 1000) + self._clock_ms

    def send(self, chunks: list[bytes]) -> Answer:
        """Upload encoded chunks; what became of them. Unreachable where nobody answered."""
        try:
            response = self.upload(pack(chunks))
        except httpx.TransportError as error:
            wrong = f"no answer from the gateway ({type(error).__name__}: {error})"
            raise Unreachable(wrong, where=self.url, do="It is tried again") from None
        answer = understand(response.status_code, response.content, len(chunks), response.headers.get("retry-after"))
        self.heard(answer.sample_rate)
        return answer

    def upload(self, packed: bytes) -> httpx.Response:
        """POST chunks; learns the gateway's clock from the answer."""
        headers = {"Content-Type": "application/x-spar-chunks"}
        before_ms = time.time() * 1000
        response = self._http.post(f"/v1/games/{self._game}/chunks", content=packed, headers=headers)
        told_ms = read_body(response.content).time_ms
        if told_ms is not None:
            # Halfway between asking and hearing; half a round trip is the error, which is small beside a wrong clock.
            self._clock_ms = int(told_ms - (before_ms + time.time() * 1000) / 2)
        return response

    def heard(self, sample_rate: float | None) -> None:
        """The share of episodes that the gateway asks for from now on."""
        if sample_rate is not None:
            self.sample_rate = sample_rate

    def spec(self, version: str | None = None) -> bytes:
        """The JSON about the game; Missing or Unreachable otherwise."""
        params = {} if version is None else {"version": version}
        response = self._get(f"/v1/games/{self._game}", params=params)
        return response.content

    def champion(self, version: str, seat: int, etag: str) -> tuple[Signed | None, str]:
        """The manifest and its tag; None with the same tag where it did not change. Missing where none reigns."""
        headers = {"If-None-Match": etag} if etag else {}
        params = {"version": version, "seat": str(seat)}
        response = self._get(f"/v1/games/{self._game}/champion", params=params, headers=headers)
        if response.status_code == 304:
            return None, etag
        try:
            return msgspec.json.decode(response.content, type=Signed), response.headers.get("etag", "")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreachable(
                f"the champion does not read: {error}", where=self.url, do="It is asked for again"
            ) from None

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
        return Unreachable(
            f"no answer ({type(error).__name__})", where=self.url, do="Check that `spar serve` runs there"
        )
