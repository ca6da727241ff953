"""`POST …/act`: one observation, one action. Stateless: a recurrent state goes out and comes back with the request."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused
from sparring.gateway.http_errors import json_response
from sparring.gateway.inference import InferenceRequest
from sparring.gateway.request_body import read_call
from sparring.gateway.request_views import legal_of, observation_of, seat_of, state_of
from sparring.gateway.state import GatewayState
from sparring.wire.ids import ModelId


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked. `version` by default the newest; `model` by default the champion. `state` is the answer's before
    in the same episode, with that answer's model; null where the episode begins."""

    observation: dict[str, Any]
    legal: list[Any] | None = None
    seat: int = 0
    strength: float | None = None
    model: ModelId | None = None
    state: list[float] | None = None
    version: str | None = None


async def post_act(request: Request, parts: GatewayState) -> Response:
    """`model` null in the answer says that chance chose, since there is no champion yet; `state` null that the model
    remembers nothing."""
    call = await read_call(request, Call, parts.config.gateway.body_deadline_s)
    spec = parts.spec(request.path_params["game"], call.version)
    seat = seat_of(spec, call.seat)
    if call.strength is not None and not 0.0 <= call.strength <= 1.0:
        raise ChunkRefused(
            "strength is a share", where="act", do="Send 0 to 1", field="strength", value=call.strength, limit=[0, 1]
        )
    observation = observation_of(seat, call.observation, spec.frame_stack)
    asked = InferenceRequest(observation, legal_of(seat, call.legal), call.strength, state_of(call.state))
    chosen = await parts.inference.decide(spec, call.seat, asked, call.model)
    parts.metrics.count("spar_acts_total", f'by="{"chance" if chosen.model is None else "model"}"')
    return json_response(
        {
            "action": chosen.action,
            "logp": chosen.logp,
            "value": chosen.value,
            "model": chosen.model,
            "state": None if chosen.after is None else chosen.after.tolist(),
        }
    )
