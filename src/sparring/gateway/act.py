"""`POST …/act`: one observation, one action. Stateless: a recurrent state goes out and comes back with the request."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused
from sparring.gateway.body import read_call
from sparring.gateway.inference import Asked
from sparring.gateway.parts import Parts
from sparring.gateway.refusals import json_response
from sparring.gateway.views import legal_of, observation_of, seat_of
from sparring.wire.ids import ModelId


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked. `version` by default the newest; `model` by default the champion."""

    observation: dict[str, Any]
    legal: list[Any] | None = None
    seat: int = 0
    strength: float | None = None
    model: ModelId | None = None
    state: Any = None
    version: str | None = None


async def post_act(request: Request, parts: Parts) -> Response:
    """`model` null in the answer says that chance chose, since there is no champion yet."""
    call = await read_call(request, Call, parts.config.gateway.body_deadline_s)
    spec = parts.spec(request.path_params["game"], call.version)
    seat = seat_of(spec, call.seat)
    if call.strength is not None and not 0.0 <= call.strength <= 1.0:
        raise ChunkRefused(
            "strength is a share", where="act", do="Send 0 to 1", field="strength", value=call.strength, limit=[0, 1]
        )
    if call.state is not None:
        raise ChunkRefused("no model here keeps a state", where="act", do="Leave it out", field="state")
    asked = Asked(observation_of(seat, call.observation, spec.frame_stack), legal_of(seat, call.legal), call.strength)
    chosen = await parts.inference.decide(spec, call.seat, asked, call.model)
    parts.metrics.count("spar_acts_total", f'by="{"chance" if chosen.model is None else "model"}"')
    return json_response(
        {"action": chosen.action, "logp": chosen.logp, "value": chosen.value, "model": chosen.model, "state": None}
    )
