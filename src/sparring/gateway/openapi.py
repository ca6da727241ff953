"""/openapi.json: the table of endpoints as an OpenAPI 3.1 document. Schemas are made by msgspec from the types that
decode requests and encode answers, so the document cannot say anything else than the code does."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from starlette.responses import Response

from sparring import __version__
from sparring.gateway.http_errors import Problem
from sparring.gateway.identity import ANONYMOUS, PLAYER_SCOPES, PUBLIC, SELF

JSON = "application/json"
_SHOWN_NAME = [
    {
        "name": "spar-player",
        "in": "header",
        "required": False,
        "description": "Without a player's token: the secret name under which the player records",
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    }
]
Handler = Callable[..., Any]  # of a request and the gateway's `state`; its answer, or an awaitable of it
DESCRIPTION = """\
Bots for games that learn from the people who play. A `{game}` or `{file}` with a slash in it is sent percent-encoded.

`WS /v1/games/{game}/play` is a WebSocket: hello, start, observe → action, end, as JSON in text frames or msgpack in
binary ones. A browser, which cannot send a header there, offers the subprotocols `spar.1` and `bearer.<key or token>`.

While the gateway has no keys and is bound to loopback, callers on its machine need no credential to record, act and
read."""
SECURITY_SCHEMES = {
    "apiKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of `spar keys create`; the operation names the scope that it needs",
    },
    "playerToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of POST /v1/games/{game}/tokens: it holds for that game and player",
    },
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method at one path. `{game}` may hold slashes, since games of other libraries do."""

    method: str
    path: str
    scope: str
    handler: Handler  # its return annotation describes the answer
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None  # as JSON
    raw_body: str = ""  # the content type of a body that is taken beside JSON
    raw_answers: tuple[str, ...] = ()  # content types of answers that are no JSON struct
    errors: dict[int, str] = field(default_factory=dict)  # beside those that many endpoints have: `_errors`

    @property
    def pattern(self) -> str:
        return self.path.replace("{game}", "{game:path}")

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def answer(self) -> Any:
        """The type that the handler returns beside a Response; None where there is none."""
        found = get_type_hints(self.handler)["return"]
        kinds = get_args(found) if get_origin(found) is UnionType else (found,)
        return next((kind for kind in kinds if kind is not Response), None)


def describe(endpoints: Sequence[Endpoint], socket: str) -> dict[str, Any]:
    """The document."""
    types = [Problem, *(one.answer for one in endpoints), *(one.body for one in endpoints)]
    known = list(dict.fromkeys(kind for kind in types if kind is not None))
    made, components = msgspec.json.schema_components(known, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(known, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    paths[socket] = {
        "get": {
            "summary": "WebSocket: hello, start, observe → action, end; see docs/wire.md",
            "operationId": "play",
            "parameters": _parameters(socket, None),
            "responses": {
                "101": {"description": "Switching protocols"},
                **_errors({404: "No such game, or no WebSocket"}, "act", schemas),
            },
            "security": _security("act"),
        }
    }
    licence = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sparring", "version": __version__, "description": DESCRIPTION, "license": licence},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
    }


def _operation(one: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    content = {kind: _raw(kind) for kind in one.raw_answers}
    if one.answer is not None:
        content[JSON] = {"schema": schemas[one.answer]}
    body = {} if one.body is None else {408: "The body came too slowly", 413: "Too large"}
    operation: dict[str, Any] = {
        "summary": one.summary,
        "operationId": one.name,
        "parameters": [*_parameters(one.path, one.query), *(_SHOWN_NAME if one.scope == SELF else ())],
        "responses": {
            "200": {"description": "OK", "content": content},
            **_errors(body | one.errors, one.scope, schemas),
        },
        "security": _security(one.scope),
    }
    if one.body is not None:
        bodies = {JSON: {"schema": schemas[one.body]}} | ({one.raw_body: _raw(one.raw_body)} if one.raw_body else {})
        operation["requestBody"] = {"required": True, "content": bodies}
    return operation


def _parameters(path: str, query: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    text = {"type": "string"}
    named = [{"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", path)]
    if query is None:
        return named
    (schema,) = msgspec.json.schema_components([query])[1].values()
    required = schema["required"]
    return named + [
        {"name": name, "in": "query", "required": name in required, "description": schema["description"], "schema": one}
        for name, one in schema["properties"].items()
    ]


def _errors(errors: dict[int, str], scope: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    """By status; a redirect and 304 have no body."""
    shared = {400: "The head, the query or the body is wrong", 429: "Too many; see Retry-After", 503: "Try again later"}
    if scope != PUBLIC:
        keys = [] if scope == SELF else [f"the scope {scope}"]
        tokens = ["a player token of this game"] if scope in PLAYER_SCOPES else []
        shared |= {401: "No valid key or token", 403: f"Needs {' or '.join(keys + tokens)}"}
    problem = {"content": {JSON: {"schema": schemas[Problem]}}}
    return {
        str(status): {"description": text} | (problem if status >= 400 else {})
        for status, text in sorted({**shared, **errors}.items())
    }


def _security(scope: str) -> list[dict[str, list[str]]]:
    """Who may call: any of these. The empty one is the caller on this machine, while there are no keys."""
    if scope == PUBLIC:
        return []
    callers: list[tuple[bool, dict[str, list[str]]]] = [
        (True, {"apiKey": ["record" if scope == SELF else scope]}),
        (scope in PLAYER_SCOPES, {"playerToken": []}),
        (ANONYMOUS.may(scope), {}),
    ]
    return [scheme for allowed, scheme in callers if allowed]


def _raw(content_type: str) -> dict[str, Any]:
    if content_type == JSON:
        return {"schema": {"type": "object", "additionalProperties": True}}
    return {"schema": {"type": "string"} | ({} if content_type.startswith("text/") else {"format": "binary"})}
