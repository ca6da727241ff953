"""AWS as moto plays it, on loopback: one server for all tests of a session, emptied before each."""

import datetime
import functools
import logging
import re
import shlex
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer

from sparring.hosts.cluster.leftovers import Leftover, find

WEST, EAST = "us-west-2", "us-east-1"
NOW = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3)


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each call
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> str:
    """An empty account, its credentials in the environment, and a home of one's own."""
    httpx.post(f"{moto_url}/moto-api/reset", timeout=60).raise_for_status()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", WEST)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return moto_url


def left(*regions: str, cluster: str = "") -> list[Leftover]:
    return find(regions or (WEST,), NOW, cluster)


def kinds(found: list[Leftover]) -> list[str]:
    return [one.kind for one in found]


def obey(command: str) -> None:
    """Run an `aws …` command line through boto3, with every word held against AWS's own model of the operation."""
    words = shlex.split(command)
    assert words[0] == "aws"
    service, verb, rest = words[1], words[2], words[3:]
    waiter = ""
    if verb == "wait":
        waiter, rest = rest[0].replace("-", "_"), rest[1:]
    options: dict[str, list[str]] = {}
    for word in rest:
        if word.startswith("--"):
            options[word[2:]] = []
        else:
            options[list(options)[-1]].append(word)
    region = options.pop("region", [WEST])[0]
    client = _client(service, region)
    if waiter:
        client.get_waiter(waiter).wait(**_named(client, "DescribeInstances", options))
        return
    operation = "".join(part.capitalize() for part in verb.split("-"))
    assert operation in client.meta.service_model.operation_names, f"aws {service} {verb} is no command"
    getattr(client, verb.replace("-", "_"))(**_named(client, operation, options))


@functools.cache
def _client(service: str, region: str) -> Any:
    return boto3.client(service, region_name=region)


def _named(client: Any, operation: str, options: dict[str, list[str]]) -> dict[str, Any]:
    members = client.meta.service_model.operation_model(operation).input_shape.members
    by_option = {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): name for name in members}
    assert set(options) <= set(by_option), f"{operation} has no {set(options) - set(by_option)}"
    return {
        by_option[name]: values if members[by_option[name]].type_name == "list" else values[0]
        for name, values in options.items()
    }
