"""kill -9 under load: every acknowledged chunk is there once, and nothing that was not sent."""

import random
import threading
import time
from collections import Counter

import httpx
import pytest
from talking import BINARY, stored

from derived import chunks_of, differences
from serving import start
from sparring.wire.chunk import encode, pack

KILLS, CLIENTS, SEED = 20, 4, 11


class Uploader(threading.Thread):
    """Sends its episodes in order, each until it is acknowledged, whatever happens to the server meanwhile."""

    def __init__(self, number, address):
        super().__init__(name=f"uploader-{number}")
        self.number, self.address = number, address
        self.acknowledged, self.sent = set(), set()
        self.done = threading.Event()

    def run(self):
        episode = 0
        client = httpx.Client(timeout=5)
        while not self.done.is_set():
            chunks = chunks_of(SEED, self.number, episode, steps=60, chunk_steps=20, player=None)
            keys = {chunk.key for chunk in chunks}
            self.sent |= keys
            try:
                response = client.post(
                    f"{self.address()}/v1/games/cartpole/chunks",
                    content=pack([encode(chunk) for chunk in chunks]),
                    headers=BINARY,
                )
            except httpx.TransportError:  # unknown: it may be stored or not, so it is sent again
                time.sleep(0.02)
                client.close()
                client = httpx.Client(timeout=5)
                continue
            if response.status_code == 200:
                assert {result["verdict"] for result in response.json()["results"]} <= {"new", "had"}
                self.acknowledged |= keys
                episode += 1
        client.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_under_load_lose_and_double_nothing(tmp_path):
    rng, data = random.Random(SEED), tmp_path / "data"
    server = start(data)
    port = server.port
    uploaders = [Uploader(number, lambda: server.url) for number in range(CLIENTS)]
    for uploader in uploaders:
        uploader.start()
    try:
        for _ in range(KILLS):
            before = sum(len(uploader.acknowledged) for uploader in uploaders)
            deadline = time.monotonic() + 30
            while sum(len(uploader.acknowledged) for uploader in uploaders) < before + 12:
                assert time.monotonic() < deadline, "the clients did not resume"
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.3))
            server.kill()
            server.process.stdout.close()
            server = start(data, port=port)
    finally:
        for uploader in uploaders:
            uploader.done.set()
        for uploader in uploaders:
            uploader.join(20)
        server.kill()
        server.process.stdout.close()
    kept = stored(data)
    counts = Counter(chunk.key for chunk in kept)
    acknowledged = set().union(*(uploader.acknowledged for uploader in uploaders))
    sent = set().union(*(uploader.sent for uploader in uploaders))
    assert len(acknowledged) > KILLS * 12
    assert acknowledged - counts.keys() == set(), "LOST"
    assert [key for key, count in counts.items() if count > 1] == [], "DUP"
    assert counts.keys() - sent == set(), "GHOST"
    assert [chunk.key for chunk in kept if differences(chunk)] == [], "CORRUPT"
