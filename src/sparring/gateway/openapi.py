"""/openapi.json, from the table of endpoints."""

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sparring import __version__
from sparring.gateway.http_errors import json_response
from sparring.gateway.state import GatewayState

_SAID = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "field": {"type": "string"},
                "value": {},
                "limit": {},
                "do": {"type": "string"},
            },
            "required": ["code", "message", "field", "value", "limit", "do"],
        },
        "request": {"type": "string"},
        "results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}},
    },
    "required": ["error", "request"],
}
_RESULT = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["new", "had", "taken", "refused", "conflict", "forbidden", "gone", "quota"]},
        "reason": {"type": "string"},
        "field": {"type": "string"},
        "value": {},
        "limit": {},
    },
    "required": ["verdict"],
}


async def get_openapi(request: Request, parts: GatewayState) -> Response:
    """The description of everything under this address."""
    return json_response(describe())


def describe() -> dict[str, Any]:
    """OpenAPI 3.1."""
    from sparring.gateway.endpoints import ENDPOINTS, SOCKET

    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        responses = {"200": {"description": "OK"}} | {str(code): _problem(text) for code, text in one.gives.items()}
        if one.scope != "public":
            shared = {401: "No valid key", 403: f"Needs the scope {one.scope}", 429: "Too many; see Retry-After"}
            responses |= {str(code): _problem(text) for code, text in shared.items() if str(code) not in responses}
        operation: dict[str, Any] = {
            "summary": one.summary,
            "operationId": one.answers.__name__,
            "parameters": _parameters(one.path, one.query),
            "responses": responses,
            "security": [] if one.scope == "public" else [{"bearer": [one.scope]}],
        }
        if one.takes:
            operation["requestBody"] = {"required": True, "content": {kind: {} for kind in one.takes}}
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    paths[SOCKET] = {
        "get": {
            "summary": "WebSocket: hello, start, observe → action, end; see docs/wire.md",
            "operationId": "play",
            "parameters": _parameters(SOCKET, ()),
            "responses": {"101": {"description": "Switching protocols"}},
            "security": [{"bearer": ["act"]}],
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sparring",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _SAID, "Result": _RESULT},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _parameters(path: str, query: tuple[str, ...]) -> list[dict[str, Any]]:
    text = {"type": "string"}
    named = [{"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", path)]
    return named + [{"name": name, "in": "query", "required": False, "schema": text} for name in query]


def _problem(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
