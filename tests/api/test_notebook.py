"""In a notebook: examples/quickstart.ipynb runs, progress is one line that changes, and the stop button ends a run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300  # for one cell, on a busy machine


def outputs(cell: Any, kind: str = "text/plain") -> list[str]:
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


def test_the_quickstart_is_kept_without_outputs() -> None:
    path = ROOT / "examples" / "quickstart.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 60_000
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # of the kernel's own parts
def test_the_quickstart_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    trained, plotted, _, returns, played, corridor, evaluated, fought = (
        cell for cell in notebook.cells if cell.cell_type == "code"
    )
    progress, run = outputs(trained)
    assert "steps" in progress, "one line, however long the run was"
    assert run.startswith("<run ")
    assert outputs(plotted, "image/png")
    assert outputs(returns, "image/png")
    assert float(outputs(played)[-1]) > 300
    assert outputs(corridor)[-1] == "1"
    assert "won" in outputs(evaluated)[-1]
    assert outputs(fought)[-1] in ("'we won'", "'a draw'", "'the champion won'")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_the_games_after_training_are_announced_under_the_line(tmp_path: Path) -> None:
    source = """
import sparring
seen = []
hook = lambda message: seen.append(message["content"]["data"]["text/plain"]) or message
get_ipython().display_pub.register_hook(hook)
sparring.train('cartpole', steps=512)
"\\n".join(seen)"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    line, seen = outputs(notebook.cells[0])
    assert re.fullmatch(r"100%  512 steps.*", line), "when all is done, the last progress alone"
    assert "games …" in seen


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_the_stop_button_ends_a_run_in_good_order(tmp_path: Path) -> None:
    source = "import sparring\nsparring.train('cartpole', steps=10**9).state"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}})

    async def stop_when_it_learns() -> None:
        while not notebook.cells[0].get("outputs"):
            await asyncio.sleep(0.1)
        await client.km.interrupt_kernel()  # type: ignore[union-attr]

    async def both() -> None:
        await asyncio.gather(client.async_execute(), stop_when_it_learns())

    asyncio.run(both())
    assert outputs(notebook.cells[0])[-1] == "'stopped'"
