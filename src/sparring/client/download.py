"""A model's files: from the place that the gateway points to, such as a bucket, or else through the gateway itself."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx

from sparring.errors import Unreachable

MAX_MODEL_BYTES = 1 << 30

log = logging.getLogger("sparring.client")


class Download:
    """Downloads over the gateway's `http`; never verified here, since only the card says what the bytes must be.

    A place that does not answer, or is not over TLS while the gateway is, is passed by from then on: whoever runs the
    gateway may keep its bucket where no player reaches it.
    """

    def __init__(self, http: httpx.Client, tls: Callable[[str, str | Path | None], ssl.SSLContext | bool]) -> None:
        self._http, self._tls = http, tls
        self._pointed = True

    def get(self, path: str, check: Callable[[int, str], None], ca: str | Path | None) -> bytes:
        """The file at the gateway's `path`; `check` raises for a status that is no success."""
        if self._pointed:
            with self._http.stream("GET", path, params={"direct": "1"}) as response:
                if response.status_code != 307:
                    check(response.status_code, path)
                    return _body(response, path)
                place = response.headers.get("location", "")
            try:
                return self._elsewhere(place, ca)
            except (httpx.HTTPError, httpx.InvalidURL, Unreachable) as error:
                self._pointed = False
                log.info("models come through the gateway from now on: %s", error)
        with self._http.stream("GET", path) as response:
            check(response.status_code, path)
            return _body(response, path)

    def _elsewhere(self, place: str, ca: str | Path | None) -> bytes:
        named = place.partition("?")[0]  # what follows is a signature: it is shown to nobody
        if not place.startswith("https://" if self._http.base_url.scheme == "https" else ("https://", "http://")):
            raise Unreachable(f"{named[:80]!r} is no place for models", where=str(self._http.base_url), do="Use https")
        # Another client: the gateway's token is for the gateway alone.
        with (
            httpx.Client(timeout=self._http.timeout, verify=self._tls(place, ca), trust_env=False) as plain,
            plain.stream("GET", place) as response,
        ):
            if response.status_code != 200:
                raise Unreachable(f"it answered {response.status_code}", where=named, do="Ask its operator")
            return _body(response, named)


def _body(response: httpx.Response, where: str) -> bytes:
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > MAX_MODEL_BYTES:
            raise Unreachable(f"it is above {MAX_MODEL_BYTES} bytes", where=where, do="Ask its operator")
        parts.append(part)
    return b"".join(parts)
