"""The rehearsal of docs/deploy.md: back up while players upload, lose the machine, restore, and go on."""

import json
import shutil
import subprocess
import sys
import threading
import time

import httpx
import msgspec
import pytest
from talking import BINARY, stored

from client.served_models import always, promote
from derived import chunks_of, differences
from serving import start, stop
from sparring.registry import open_registry
from sparring.wire.champion import Signed, verify
from sparring.wire.chunk import encode, pack

pytestmark = pytest.mark.slow


def spar(*words):
    done = subprocess.run([sys.executable, "-m", "sparring", *words, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Players(threading.Thread):
    """Uploads episode after episode until it is told to stop; what was acknowledged, by key."""

    def __init__(self, url, headers):
        super().__init__(name="players")
        self.url, self.headers = url, headers
        self.acknowledged, self.over = set(), threading.Event()

    def run(self):
        episode = 0
        with httpx.Client(base_url=self.url, headers=self.headers | BINARY, timeout=60) as http:
            while not self.over.is_set():
                chunks = chunks_of(3, 1, episode, player=None)
                answer = http.post("/v1/games/cartpole/chunks", content=pack([encode(one) for one in chunks]))
                assert answer.status_code == 200, answer.text
                self.acknowledged = self.acknowledged | {one.key for one in chunks}
                episode += 1

    def play(self, chunks):
        """Wait until so many more are acknowledged."""
        wanted, until = len(self.acknowledged) + chunks, time.monotonic() + 120
        while len(self.acknowledged) < wanted:
            assert self.is_alive(), "an upload failed"
            assert time.monotonic() < until
            time.sleep(0.01)


def test_every_row_the_champion_and_the_players_names_survive_the_machine(tmp_path):
    data, archive = tmp_path / "data", tmp_path / "backup.tar.zst"
    key = spar("keys", "create", "studio", "--scopes", "admin", "--data", str(data))["key"]
    allowed = {"Authorization": f"Bearer {key}"}
    with open_registry(f"file://{data / 'models'}") as registry:
        for action in (0, 1):
            champion = always(action)
            promote(registry, champion)
    server = start(data)

    def champion_and_player(at):
        with httpx.Client(base_url=at.url, headers=allowed, timeout=60) as http:
            signed = http.get("/v1/games/cartpole/champion", params={"version": "1"})
            token = http.post("/v1/games/cartpole/tokens", json={"player": "alice"})
            return signed.content, token.json()["player"], http.get(f"/v1/models/{champion.id}/model.onnx").content

    before = champion_and_player(server)
    players = Players(server.url, allowed)
    players.start()
    try:
        players.play(60)
        safe = players.acknowledged
        spar("backup", str(archive), "--data", str(data))
        players.play(60)  # which the backup neither stopped nor failed
    finally:
        players.over.set()
        players.join()
        server.kill()
        server.process.stdout.close()
    shutil.rmtree(data)

    spar("restore", str(archive), "--data", str(data))
    assert spar("data", "verify", "--data", str(data))["damaged"] == []
    server = start(data)
    try:
        assert champion_and_player(server) == before
        signed = msgspec.json.decode(before[0], type=Signed)
        assert verify(signed, server.trust).model == champion.id
        players = Players(server.url, allowed)  # the same key; what was acknowledged after the backup is sent again
        players.start()
        players.play(len(safe) + 30)
        players.over.set()
        players.join()
    finally:
        stop(server)
    kept = stored(data)
    assert safe <= {chunk.key for chunk in kept}, "acknowledged before the backup, and lost"
    assert players.acknowledged <= {chunk.key for chunk in kept}
    assert len({chunk.key for chunk in kept}) == len(kept)
    assert not any(differences(chunk) for chunk in kept)
