"""Requests that Schemathesis generates from /openapi.json, for each kind of caller: no answer is a 500, and each has a
status, a content type and a body that the document describes.

A part of the requests is near to valid: real names in the path, and a real body of which generated fields replace some.
FUZZ_REQUESTS (200 by default; `make fuzz`: 5,000) is the number of requests of each caller.
"""

import functools
import json
import logging
import os
from collections import Counter

import httpx
import numpy as np
import pytest
import requests

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from talking import one_chunk

from dashboard.published import publish
from serving import serving
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder
from sparring.wire.chunk import encode, pack

log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # `make fuzz` shows what this test logs

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "200"))
SETTINGS = (
    "gateway.requests_per_s=1e9",
    "gateway.burst_requests=1000000000",
    "gateway.player_steps_per_day=1000000000",
)
REACHED = {200, 304, 307, 409, 410, 422}  # answers of a handler to a request that it understood
CALLERS = {  # whose calls reach a handler
    "none": {"get_health", "get_readiness", "get_openapi"},
    "read": {"list_games", "get_game", "get_champion", "get_model_file", "get_metrics", "get_game_rows"}
    | {"get_model_rows", "get_promotions", "get_run_rows", "get_run_metrics", "get_stats", "get_minutes"},
    "player": {"post_chunks", "post_act", "get_me", "delete_me", "get_game", "get_champion", "get_model_file"},
    "admin": {"post_token", "post_chunks", "post_act"},
}
BINARY = "application/x-spar-chunks"
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]  # 500 is not described


def header_values():
    """Headers that the gateway reads, with values that senders choose."""
    text = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40).map(str.strip)
    names = ("Accept", "If-None-Match", "Range", "Accept-Encoding", "X-Forwarded-For", "Origin", "User-Agent", "Cookie")
    return st.dictionaries(st.sampled_from(names), text | st.sampled_from(["*/*", BINARY, "*", "gzip", "bytes=0-"]))


@st.composite
def packed_chunks(draw):
    """A binary upload: whole, or with some bytes changed."""
    packed = bytearray(pack([encode(chunk(draw)) for _ in range(draw(st.integers(1, 3)))]))
    for _ in range(draw(st.sampled_from([0, 0, 1, 4]))):
        packed[draw(st.integers(0, len(packed) - 1))] = draw(st.integers(0, 255))
    return bytes(packed)


def chunk(draw):
    return one_chunk(draw(st.integers(0, 1 << 30)))


def json_chunk(draw):
    """A valid upload as JSON."""
    one = chunk(draw)
    names = ("game", "version", "spec", "episode", "seat", "first_step", "steps", "actor", "source", "ending")
    return {
        "header": {name: getattr(one.header, name) for name in names},
        "columns": {name: np.asarray(array).tolist() for name, array in one.columns.items()},
    }


def near(draw, valid, generated):
    """The valid object, in which some fields of the generated one replace or join its own."""
    found = dict(valid)
    for name, value in generated.items():
        chance = draw(st.integers(0, 9))
        match found.get(name), value:
            case dict(inner), dict() if chance:
                found[name] = near(draw, inner, value)
            case [dict(inner), *_], [dict(other), *_] if chance:
                found[name] = [near(draw, inner, other)]
            case _, str(text) if chance == 1:
                found[name] = f"{text}\ud800"  # which JSON can escape, and UTF-8 has no bytes for
            case _ if chance == 0:
                found[name] = value
    return found


BODIES = {
    "post_chunks": lambda draw: {"chunks": [json_chunk(draw)]},
    "post_act": lambda draw: {"observation": {"state": [draw(st.floats(-1, 1, width=32)) for _ in range(4)]}},
    "post_token": lambda draw: {"player": draw(st.text(min_size=1, max_size=20))},
}


class Fuzzed:
    """A gateway with keys, a champion and a run, and its document."""

    def __init__(self, http, session, server, keys):
        self.http, self._session, self._keys, self._url = http, session, keys, server.url
        self._player = 0
        schema = schemathesis.openapi.from_dict(http.get("/openapi.json").json())
        schema.config.generation.update(with_security_parameters=False)  # we say who calls
        self.operations = {one.ok().definition.raw["operationId"]: one.ok() for one in schema.get_all_operations()}
        self._generated = functools.cache(self._strategy)
        self.real = {"game": "cartpole", "model": publish(server.data, "cartpole"), "file": "card.json", "run": "one"}
        self.real["match"] = "one"
        (server.data / "runs" / "one").mkdir(parents=True)
        about = '{"game": "cartpole", "algo": "ppo", "seed": 1, "started_at_ms": 1}'
        (server.data / "runs" / "one" / "run.json").write_text(about)
        (server.data / "runs" / "one" / "metrics.jsonl").write_text('{"seconds": 1.5, "env_steps": 10}\n' * 10)

    def use_next_player(self):
        """Another player's token from now on: one that was erased can do little more."""
        self._player += 1
        headers, body = {"Authorization": f"Bearer {self._keys['admin']}"}, {"player": str(self._player)}
        said = self.http.post("/v1/games/cartpole/tokens", json=body, headers=headers)
        self._keys["player"] = said.json()["token"]

    def case(self, draw, name):
        """A request of that operation, and the body to send in place of the generated one, if there is one."""
        operation, mode = self.operations[name], draw(st.sampled_from(GenerationMode))
        if not (operation.path_parameters or operation.query or operation.body):
            mode = GenerationMode.POSITIVE  # nothing of it can be wrong
        real = tuple(one.name for one in operation.path_parameters if draw(st.integers(0, 9)))
        case = draw(self._generated(name, mode, real))
        if draw(st.booleans()) and any(one.name == "game" for one in operation.query):
            case.query = {"game": "cartpole"}
        if name in BODIES and isinstance(case.body, dict) and draw(st.integers(0, 4)):
            # Not as `case.body`, which Schemathesis would validate: it cannot read half a surrogate pair.
            return case, {"data": json.dumps(near(draw, BODIES[name](draw), case.body)).encode()}
        return case, {}

    def _strategy(self, name, mode, real):
        return self.operations[name].as_strategy(mode, path_parameters={one: self.real[one] for one in real})

    def send(self, case, body, caller, headers):
        """The status of the answer, which is checked against the document."""
        if caller in self._keys:
            headers = headers | {"Authorization": f"Bearer {self._keys[caller]}"}
        answer = case.call(base_url=self._url, session=self._session, headers=headers, allow_redirects=False, **body)
        case.validate_response(answer, checks=CHECKS, headers=headers)
        return answer.status_code


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    schemathesis.openapi.media_type(BINARY, packed_chunks())
    data = tmp_path_factory.mktemp("fuzz") / "data"
    made = ApiKeys(Folder(data, 0o600))
    keys = {scope: made.create(scope, (scope,), 1)[1] for scope in ("read", "admin")}
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    with serving(data, *words) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        with requests.Session() as session:
            yield Fuzzed(http, session, server, keys)
        assert http.get("/readyz").status_code == 200
        assert "Traceback" not in server.log()


@pytest.mark.slow
@pytest.mark.parametrize("caller", CALLERS)
def test_generated_requests_get_answers_that_the_document_describes(fuzzed, caller):
    own, others, seen = sorted(CALLERS[caller]), sorted(fuzzed.operations), Counter()

    @hypothesis.seed(7)
    @hypothesis.settings(
        max_examples=REQUESTS,
        phases=[hypothesis.Phase.generate],  # a failure shows its request; a smaller one would take minutes to find
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def send(data):
        if caller == "player" and seen.total() % 20 == 0:
            fuzzed.use_next_player()
        name = data.draw(st.sampled_from(own if data.draw(st.integers(0, 4)) else others))
        case, body = fuzzed.case(data.draw, name)
        status = fuzzed.send(case, body, caller, data.draw(header_values()))
        seen[status] += 1

    send()
    log.info("%s: %d requests, by status: %s", caller, seen.total(), dict(sorted(seen.items())))
    assert seen.total() >= REQUESTS
    assert sum(seen[status] for status in REACHED) >= REQUESTS / 3, seen
