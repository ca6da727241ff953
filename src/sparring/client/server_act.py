"""act="server": the gateway chooses. The game waits for the answer, at most `timeout_s`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import numpy as np

from sparring.client.gateway import tls
from sparring.client.runner import Decision
from sparring.errors import Unreachable
from sparring.games.spec import SeatSpec
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId

log = logging.getLogger("sparring.client")


class Chosen(msgspec.Struct, frozen=True):
    """The gateway's answer."""

    action: int | float | list[int | float]
    model: ModelId | None = None
    logp: float | None = None
    state: list[float] | None = None


class ServerAct:
    """Asks `POST /v1/games/{game}/act`, on connections of its own so that uploads never stand in the way."""

    def __init__(self, url: str, game: str, token: str | None, timeout_s: float, ca: str | Path | None) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=timeout_s, verify=tls(url, ca), trust_env=False)
        self._path = f"/v1/games/{quote(game, safe='')}/act"
        self.renew(token)

    def renew(self, token: str | None) -> None:
        """Use another key from now on."""
        if token is None:
            self._http.headers.pop("Authorization", None)
        else:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def decide(
        self,
        index: int,
        seat: SeatSpec,
        observation: Mapping[str, Array],
        legal: Array | None,
        strength: float | None,
        held: Decision | None = None,
    ) -> Decision:
        """The gateway's choice, or Unreachable. A memory goes on with the model whose it is, whoever reigns by now."""
        asked = {
            "observation": {name: np.asarray(value).tolist() for name, value in observation.items()},
            "legal": None if legal is None else np.asarray(legal, bool).tolist(),
            "seat": index,
            "strength": strength,
        }
        if held is not None and held.after is not None:
            asked |= {"state": held.after.tolist(), "model": held.actor.removeprefix("model:")}
        try:
            response = self._http.post(
                self._path, content=msgspec.json.encode(asked), headers={"Content-Type": "application/json"}
            )
            if response.status_code != 200:
                raise self._failed(f"it answered {response.status_code}")
            chosen = msgspec.json.decode(response.content, type=Chosen)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._failed(f"no answer ({type(error).__name__})") from None
        actor = "script:random" if chosen.model is None else f"model:{chosen.model}"
        leaf = seat.action
        action = np.asarray(chosen.action, leaf.dtype).reshape(leaf.shape)
        decided = int(action) if leaf.kind == "discrete" else action
        if chosen.state is None:
            return Decision(decided, actor, chosen.logp)
        after = np.array(chosen.state, np.float32)
        before = np.zeros_like(after) if held is None or held.after is None else held.after
        return Decision(decided, actor, chosen.logp, before, after)

    def close(self) -> None:
        self._http.close()

    def _failed(self, wrong: str) -> Unreachable:
        return Unreachable(wrong, where=f"{self._http.base_url}{self._path}", do="A legal action is drawn by chance")
