"""What docs/services.md shows, run as it stands."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "services.md"


def test_the_examples_run_as_they_stand(tmp_path):
    service, caller, topic = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "actor.py").write_text(service)
    with (
        tempfile.TemporaryDirectory() as meeting,  # a socket's path is short, and tmp_path need not be
        subprocess.Popen(
            [sys.executable, "actor.py"],
            cwd=tmp_path,
            env=(environment := os.environ | {"XDG_RUNTIME_DIR": meeting}),
        ) as actor,
    ):
        for text, words in ((caller, "action 0\n"), (f"import numpy as np\n{topic}", "")):
            done = subprocess.run(
                [sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (0, words), done.stderr
        actor.terminate()
        assert actor.wait(60) == 0
