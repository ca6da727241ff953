"""What one would write in an afternoon: FastAPI, JSON, pydantic, one row per step in SQLite, a commit per request.

    python -m bench.peers.fastapi_sqlite FOLDER PORT

The same promises as far as it goes: shape, finite numbers and ranges are checked, and an ok is on disk
(WAL, synchronous=FULL).
"""

import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

State = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=4, max_length=4)]


class Step(BaseModel):
    """One decision."""

    state: State
    action: Annotated[int, Field(ge=0, le=1)]
    reward: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    tick: Annotated[int, Field(ge=0, le=1_000_000)]


class Upload(BaseModel):
    """Steps of one episode."""

    episode: Annotated[str, Field(min_length=36, max_length=36)]
    first_step: Annotated[int, Field(ge=0)]
    steps: Annotated[list[Step], Field(min_length=1, max_length=512)]


def build(folder: Path) -> FastAPI:
    """The application on one connection; it is the only writer."""
    db = sqlite3.connect(folder / "steps.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE steps (episode TEXT, step INTEGER, s0 REAL, s1 REAL, s2 REAL, s3 REAL, action INTEGER, "
        "reward REAL, tick INTEGER, PRIMARY KEY (episode, step)) WITHOUT ROWID"
    )
    app = FastAPI()

    # async, so that the event loop calls it directly and no request pays for a change of thread.
    @app.post("/steps")
    async def steps(upload: Upload) -> dict[str, Any]:
        rows = [
            (upload.episode, upload.first_step + n, *step.state, step.action, step.reward, step.tick)
            for n, step in enumerate(upload.steps)
        ]
        db.execute("BEGIN")
        db.executemany("INSERT OR IGNORE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")
        return {"verdict": "new"}

    return app


if __name__ == "__main__":
    uvicorn.run(build(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", lifespan="off")
