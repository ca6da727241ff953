"""`spar doctor` on the cloud path: what is configured is asked, what is missing is named with its fix."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import running
from servers.process import free_ports

SPAR = Path(sys.executable).parent / "spar"
SECRET = "never-to-be-printed"


def doctor(folder, *settings, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words = [SPAR, "doctor", "--json", "--set", "gateway.port=0", *(f"--set={one}" for one in settings)]
    done = subprocess.run(words, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, {one["what"]: one for one in said["findings"]}


def test_servers_that_do_not_answer_are_named_each_with_its_fix(tmp_path):
    kinesis, cassandra, s3, redis = free_ports(4)
    code, found = doctor(
        tmp_path,
        f'stream.url="kinesis://play?region=us-east-1&endpoint=http://127.0.0.1:{kinesis}"',
        f'store.url="cassandra://127.0.0.1:{cassandra}/sparring"',
        f'registry.url="s3://bucket/models?region=us-east-1&endpoint=http://127.0.0.1:{s3}"',
        f'league.pool_url="redis://127.0.0.1:{redis}/0"',
        REDIS_PASSWORD=SECRET,
        AWS_ACCESS_KEY_ID="local",
        AWS_SECRET_ACCESS_KEY=SECRET,
    )
    assert code == 1
    for part, port in (("stream", kinesis), ("store", cassandra), ("registry", s3), ("pool", redis)):
        assert not found[part]["ok"]
        assert found[part]["needed"]
        assert str(port) in found[part]["found"]
        assert found[part]["fix"]


@pytest.mark.servers
def test_a_redis_that_answers_is_shown_with_its_url(tmp_path):
    with running.redis(tmp_path / "redis", "--requirepass", SECRET) as server:
        _, found = doctor(tmp_path, f'league.pool_url="{server.ready}/0"', REDIS_PASSWORD=SECRET)
        assert found["pool"]["ok"]
        assert found["pool"]["found"] == f"{server.ready}/0"
        code, found = doctor(tmp_path, f'league.pool_url="{server.ready}/0"', REDIS_PASSWORD="wrong")
    assert code == 1
    assert found["pool"]["fix"] == "Set REDIS_USERNAME and REDIS_PASSWORD in the environment"


def test_without_credentials_it_is_said_how_to_give_them(tmp_path):
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
    code, found = doctor(tmp_path, 'stream.url="kinesis://play?region=us-east-1"', **nowhere)
    assert code == 1
    assert "no AWS credentials" in found["stream"]["found"]
    assert "AWS_ACCESS_KEY_ID" in found["stream"]["fix"]


def test_a_dangerous_configuration_is_named_each_with_what_to_do(tmp_path):
    code, found = doctor(tmp_path)
    assert code == 0
    assert all(found[part]["ok"] for part in ("tls", "keys", "secrets", "trusted proxies", "file limit"))
    (tmp_path / "data" / "keys").mkdir(parents=True)
    (tmp_path / "data" / "format.json").write_text('{"format": 2}')
    for name in ("identity.key", "tls-key.pem", "keys/studio.json"):
        (tmp_path / "data" / name).write_text("")
    os.chmod(tmp_path / "data" / "identity.key", 0o640)
    os.chmod(tmp_path / "data" / "tls-key.pem", 0o600)
    settings = (
        'gateway.host="0.0.0.0"',
        'gateway.trusted_proxies=["10.0.0.1", "::/0"]',
        f"gateway.connections={1 << 31}",
    )
    code, found = doctor(tmp_path, *settings)
    assert code == 1
    for part in ("tls", "keys", "secrets", "trusted proxies", "file limit"):
        assert not found[part]["ok"]
        assert found[part]["fix"]
        assert found[part]["needed"] == (part != "file limit")
    data = (tmp_path / "data").resolve()
    assert found["secrets"]["fix"] == f"chmod 600 {data / 'identity.key'} {data / 'keys/studio.json'}"


def test_what_tests_and_example_need_is_listed_and_none_of_it_is_needed(tmp_path):
    code, found = doctor(tmp_path, SPARRING_SERVERS=str(tmp_path / "nothing"), JAVA_HOME=str(tmp_path))
    assert code == 0
    for part in ("cassandra-jars", "versitygw", "kinesalite-module", "java", "extra [spark]", "extra [aws]"):
        assert not found[part]["needed"]
    assert found["cassandra-jars"]["fix"] == "make servers"
    assert found["java"]["fix"].startswith("apt-get install openjdk-17-jdk-headless")
    assert found["stream"]["found"] == "none: the gateway appends straight to the store"
