"""Models from an exported folder or from a gateway over HTTP, verified before they are used."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx

from sparring.durable import read_inside
from sparring.errors import Missing, ModelDamaged, NotYours, SparringError, Unreachable
from sparring.registry.cards import CARD, MAX_CARD_BYTES, read_card
from sparring.wire.ids import ModelId
from sparring.wire.model import Model, check

MAX_DOWNLOAD_BYTES = 1 << 30
TIMEOUT_S = 30.0


def model_in(folder: Path) -> Model:
    """The model in an exported folder: card.json and the files that it names."""

    def read(name: str) -> bytes:
        try:
            return read_inside(folder, name, MAX_CARD_BYTES if name == CARD else MAX_DOWNLOAD_BYTES)
        except FileNotFoundError:
            raise Missing(f"there is no {name}", where=str(folder), do="Give the folder of one model") from None

    text = read(CARD)
    return _model(ModelId(hashlib.sha256(text).hexdigest()), text, read)


def model_from(url: str, model: ModelId, token: str | None) -> Model:
    """The model at the gateway `url`; exactly the bytes that its id names."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as client:

        def read(name: str) -> bytes:
            limit = MAX_CARD_BYTES if name == CARD else MAX_DOWNLOAD_BYTES
            return _download(client, f"{url.rstrip('/')}/v1/models/{model}/{name}", limit)

        text = read(CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=f"model {model[:12]}", do="Do not use it")
        return _model(model, text, read)


def _model(model: ModelId, text: bytes, read: Callable[[str], bytes]) -> Model:
    card = read_card(text, model)
    return check(model, card, {name: read(name) for name in card.files})


def _download(client: httpx.Client, url: str, max_bytes: int) -> bytes:
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise _refusal(answer.status_code, url)
            parts, size = [], 0
            for part in answer.iter_bytes():
                size += len(part)
                if size > max_bytes:
                    raise ModelDamaged(f"it is larger than {max_bytes} bytes", where=url, do="Do not use it")
                parts.append(part)
            return b"".join(parts)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(
            str(error) or type(error).__name__, where=url, do="Check the address, then try again"
        ) from None


def _refusal(status: int, url: str) -> SparringError:
    if status == 404:
        return Missing("there is no such model there", where=url, do="Check the id and the address")
    if status in (401, 403):
        return NotYours("the gateway does not let this caller read", where=url, do="Give --token with scope read")
    return Unreachable(f"the gateway answered {status}", where=url, do="Try again later")
