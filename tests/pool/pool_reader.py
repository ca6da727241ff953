"""One reader of a pool, in a process of its own: it reads models until it is told to stop, and says what it saw.

    pool_reader.py URL REGISTRY STOP   < {"id": {"file": "SHA-256"}}

REGISTRY may be "". What it gets is judged by hashes from standard input, not by the code that is tested.
"""

import hashlib
import json
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from sparring.errors import SparringError
from sparring.pool import open_pool
from sparring.registry import open_registry
from sparring.wire.champion import canonical
from sparring.wire.ids import ModelId

LONGEST_S = 120.0
PAUSE_S = 0.005  # so that the writer gets a turn


def verdict(pool, model_id, files):
    """ "right", "WRONG" or the name of a typed error."""
    try:
        model = pool.get(ModelId(model_id))
    except SparringError as error:
        return type(error).__name__
    right = hashlib.sha256(canonical(model.card)).hexdigest() == model_id
    right &= {name: hashlib.sha256(content).hexdigest() for name, content in model.files.items()} == files
    return "right" if right else "WRONG"


def main(url, registry, stop):
    wanted, draw, seen = json.loads(sys.stdin.read()), random.Random(), Counter()
    with ExitStack() as opened:
        fallback = opened.enter_context(open_registry(registry)) if registry else None
        pool = opened.enter_context(open_pool(url, fallback))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        until = time.monotonic() + LONGEST_S
        while not Path(stop).exists() and time.monotonic() < until:
            model_id = draw.choice(list(wanted))
            seen[verdict(pool, model_id, wanted[model_id])] += 1
            time.sleep(PAUSE_S)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
