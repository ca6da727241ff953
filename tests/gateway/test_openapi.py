"""The document at /openapi.json: valid, true of every answer and every refusal, and enough for a client generator."""

import copy
import json
import re
import subprocess

import httpx
import pytest
from jsonschema import Draft202012Validator
from talking import one_chunk, post

from dashboard.javascript import node
from dashboard.published import publish, sell
from league_match import store_match
from servers.running import program
from serving import inside
from sparring.gateway.app import ENDPOINTS, SOCKET
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder

ACT = {"observation": {"state": [0.1, 0.0, 0.02, 0.0]}}
HEADER = {
    **{"game": "cartpole", "version": "1", "spec": "0" * 64, "episode": "0190a6c2-0000-7000-8000-000000000000"},
    **{"seat": 0, "first_step": 0, "steps": 1, "actor": "person", "source": "play"},
}
BODIES = {
    "post_act": ACT,
    "post_token": {"player": "alice"},
    "post_chunks": {"chunks": [{"header": HEADER, "columns": {}}]},
}
CLIENT = """
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";

const client = createClient<paths>({ baseUrl: process.argv[2] });
const health = await client.GET("/healthz");
const champion = await client.GET("/v1/games/{game}/champion", { params: { path: { game: "cartpole" } } });
const models = await client.GET("/api/models", { params: { query: { game: "cartpole" } } });
const acted = await client.POST("/v1/games/{game}/act", {
  params: { path: { game: "cartpole" } },
  body: { observation: { state: [0, 0, 0, 0] } },
});
const refused = await client.GET("/api/models", { params: { query: { game: "chess" } } });
if (!health.data || !champion.data || !models.data || !acted.data || !refused.error) throw new Error("no answer");
const mean: number | undefined = models.data.models[0].evidence?.mean;
// @ts-expect-error: the answer has no such field
health.data.nonsense;
// @ts-expect-error: the query needs a game
const wrong = () => client.GET("/api/models");
const answers = [health.data.into, champion.data.key, models.data.models[0].id, mean, acted.data.model, refused.error];
console.log(JSON.stringify(answers));
"""
LINT = """
import { createConfig, lint } from "@redocly/openapi-core";
const config = await createConfig({ rules: { struct: "error", "no-unresolved-refs": "error",
  "operation-operationId-unique": "error", "path-parameters-defined": "error", "security-defined": "error" } });
const found = await lint({ ref: process.argv[2], config });
console.log(JSON.stringify(found.map((one) => `${one.ruleId}: ${one.message}`)));
"""


@pytest.fixture(scope="module")
def document(http):
    return http.get("/openapi.json").json()


def validator(document, schema):
    return Draft202012Validator({**schema, "components": document["components"]})


def schema_of(document, operation, status, content_type="application/json"):
    return operation["responses"][str(status)]["content"][content_type]["schema"]


def operations(document):
    return {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}


def test_every_endpoint_is_described_with_its_answer(document):
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(one.method, one.path) for one in ENDPOINTS} | {("GET", SOCKET)}
    assert len(operations(document)) == len(ENDPOINTS) + 1, "operationIds are unique: generators make functions of them"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
            assert declared == re.findall(r"{(\w+)}", path)
            assert all(one["schema"] for one in operation["parameters"])
            for scheme in (name for one in operation["security"] for name in one):
                assert scheme in document["components"]["securitySchemes"]
            for status, response in operation["responses"].items():
                if status == "200" or status >= "400":
                    assert all(one["schema"] for one in response["content"].values()), (path, status)
    refs = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document))
    assert set(refs) <= document["components"]["schemas"].keys()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    uploads = operations(document)["post_chunks"]["requestBody"]["content"]
    assert uploads["application/x-spar-chunks"]["schema"] == {"type": "string", "format": "binary"}


def test_answers_are_as_described(tmp_path):
    data = tmp_path / "data"
    model = publish(data, "cartpole")
    sell(data, "cartpole", model)
    key = ApiKeys(Folder(data, 0o600)).create("studio", ("admin",), 1)[1]
    with inside(data) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        (data / "runs" / "one").mkdir(parents=True)
        (data / "runs" / "one" / "run.json").write_text(
            '{"game": "cartpole", "algo": "ppo", "seed": 1, "started_at_ms": 1}'
        )
        (data / "runs" / "one" / "metrics.jsonl").write_text('{"seconds": 1.5, "env_steps": 10, "return_mean": NaN}\n')
        document = client.get("/openapi.json").json()
        token = client.post("/v1/games/cartpole/tokens", json={"player": "alice"}).json()["token"]
        sent = post(client, [one_chunk(1)], Authorization=f"Bearer {token}")
        calls = [
            ("post_chunks", sent),
            ("post_token", client.post("/v1/games/cartpole/tokens", json={"player": "bob"})),
            ("post_act", client.post("/v1/games/cartpole/act", json=ACT)),
            ("post_node_order", client.post("/api/nodes", json={"node": "nobody", "action": "drain"})),
        ]
        store_match(data)
        paths = {"game": "cartpole", "model": model, "file": "card.json", "run": "one", "match": "one"}
        for one in ENDPOINTS:
            if one.method != "POST":
                query = {"game": "cartpole"} if one.path.startswith("/api/") else {}
                credential = {"Authorization": f"Bearer {token}"} if one.path.endswith("/me") else {}
                url = one.path.format(**paths | ({"game": "duel"} if one.path.startswith("/api/league/") else {}))
                calls.append((one.name, client.request(one.method, url, params=query, headers=credential)))
        assert {name for name, _ in calls} == {one.name for one in ENDPOINTS}
        for name, answer in calls:
            assert answer.status_code == 200, (name, answer.text)
            kind = answer.headers["content-type"].partition(";")[0]
            schema = schema_of(document, operations(document)[name], 200, kind)
            if kind == "application/json":
                validator(document, schema).validate(answer.json())
        (run,) = dict(calls)["get_run_rows"].json()["runs"]
        assert (run["env_steps"], run["seconds"], run["return_mean"]) == (10, 1.5, None)


def wrong_bodies(body):
    """The body with each field left out, an unknown one added, or of another type; and nested ones too."""
    yield {**body, "nonsense": 1}
    for name, value in body.items():
        yield {key: item for key, item in body.items() if key != name}
        yield {**body, name: {} if isinstance(value, int | str | list) else "text"}
        inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else None
        yield from ({**body, name: [one]} for one in wrong_bodies(inner)) if inner else ()
        if isinstance(value, dict) and name == "header":
            yield from ({**body, name: one} for one in wrong_bodies(value))


@pytest.mark.parametrize("operation", BODIES)
def test_bodies_that_the_schema_refuses_are_refused(tmp_path, operation):
    data = tmp_path / "data"
    key = ApiKeys(Folder(data, 0o600)).create("studio", ("admin",), 1)[1]
    with inside(data) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        document = client.get("/openapi.json").json()
        described = operations(document)[operation]
        allowed = validator(document, described["requestBody"]["content"]["application/json"]["schema"])
        problem = validator(document, schema_of(document, described, 400))
        path = next(one.path for one in ENDPOINTS if one.name == operation).format(game="cartpole")
        allowed.validate(BODIES[operation])
        refused = [body for body in wrong_bodies(copy.deepcopy(BODIES[operation])) if not allowed.is_valid(body)]
        assert len(refused) >= 3
        for body in refused:
            answer = client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 400, (body, answer.text)
            problem.validate(answer.json())
        without = client.post(path, json=BODIES[operation])
        assert without.status_code == 401
        validator(document, schema_of(document, described, 401)).validate(without.json())


@pytest.mark.parametrize(
    ("path", "operation", "name"),
    [
        ("/api/models", "get_model_rows", "game"),
        ("/api/stats", "get_stats", "game"),
        ("/api/runs/none/metrics?after=-1", "get_run_metrics", "after"),
        ("/api/runs/none/metrics?after=soon", "get_run_metrics", "after"),
        ("/v1/games/cartpole/champion?seat=-1", "get_champion", "seat"),
        ("/v1/games/cartpole/champion?seat=first", "get_champion", "seat"),
        ("/v1/games/cartpole/champion?seat=9", "get_champion", "seat"),
    ],
)
def test_queries_that_the_schema_refuses_are_refused(http, document, path, operation, name):
    answer = http.get(path)
    assert answer.status_code == 400
    validator(document, schema_of(document, operations(document)[operation], 400)).validate(answer.json())
    assert name in answer.json()["error"]["field"] + answer.json()["error"]["message"]


def test_a_damaged_model_and_an_unwritable_audit_log_are_described_too(tmp_path):
    data = tmp_path / "data"
    model = publish(data, "cartpole")
    key = ApiKeys(Folder(data, 0o600)).create("studio", ("admin",), 1)[1]
    (data / "audit.jsonl").mkdir()
    with inside(data) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        weights = data / "models" / model / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        client.headers["Authorization"] = f"Bearer {key}"
        document = client.get("/openapi.json").json()
        calls = {
            "get_model_file": ("GET", f"/v1/models/{model}/weights.safetensors", None),
            "post_act": ("POST", "/v1/games/cartpole/act", ACT),
            "post_token": ("POST", "/v1/games/cartpole/tokens", {"player": "alice"}),
        }
        for name, (method, path, body) in calls.items():
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "failed"), name
            validator(document, schema_of(document, operations(document)[name], 503)).validate(answer.json())


@pytest.mark.servers
def test_a_generated_client_is_typed_and_calls_the_gateway(server, tmp_path):
    modules = program("openapi-typescript-modules")
    model = publish(server.data, "cartpole", mean=12.5)
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "client.ts").write_text(CLIENT)
    (tmp_path / "globals.d.ts").write_text("declare const process: { argv: string[] };")
    (tmp_path / "lint.js").write_text(LINT)
    (tmp_path / "openapi.json").write_text(httpx.get(f"{server.url}/openapi.json").text)

    def run(*words):
        found = subprocess.run([node(), *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    assert json.loads(run("lint.js", "openapi.json")) == []
    run(
        "node_modules/openapi-typescript/bin/cli.js",
        "openapi.json",
        "-o",
        "schema.d.ts",
        "--default-non-nullable=false",
    )
    strict = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--allowImportingTsExtensions"]
    run("node_modules/typescript/bin/tsc", *strict, "--skipLibCheck", "globals.d.ts", "client.ts")
    answers = json.loads(run("--no-warnings", "client.ts", server.url).splitlines()[-1])
    assert answers[:5] == ["store", server.trust, model, 12.5, model]
    assert answers[5]["error"]["code"] == "missing"
