"""A program with a host: python host_program.py FOLDER. It writes its instances' process numbers, and waits."""

import json
import sys
import time
from pathlib import Path

from sparring.hosts.protocol import Resources, open_host

sys.path.append(str(Path(__file__).parents[1]))  # as a program it knows its own folder alone

from host_services import Worker

if __name__ == "__main__":
    host = open_host("local://")
    handles = host.start(Worker, "worker", 2, Resources(), {})
    pids = [handle.ask("who").result()["pid"] for handle in handles]
    handles[0].ask("sleep", 60.0)  # also one that is at work ends
    path = Path(sys.argv[1]) / "pids"
    path.with_suffix(".new").write_text(json.dumps(pids))
    path.with_suffix(".new").rename(path)
    time.sleep(120)
