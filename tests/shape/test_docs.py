"""The documentation is part of the program: commands, links and decisions are what the code and folder say."""

import re
from pathlib import Path

import pytest
from docs.reference import DOCS
from docs.reference import PAGES as GENERATED

from sparring.cli import COMMANDS
from sparring.config import GatewayConfig

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == GENERATED[name](), "run `make docs`"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_file_with_a_docstring(command: str) -> None:
    file = ROOT / "src" / "sparring" / "cli" / f"{command}.py"
    assert file.exists(), f"`spar {command}` is listed and has no file"
    assert file.read_text().startswith('"""'), f"{file.name} has no docstring: it is the command's help"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"https?://|mailto:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target} is not there"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("0*.md")), ids=lambda page: page.stem)
def test_a_decision_is_short(page: Path) -> None:
    assert page.read_text().count("\n") <= 30, f"{page.name}: ten lines say a decision, thirty are the limit"


def test_every_page_can_be_found_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        todo += [(page.parent / link).resolve() for link in links if "://" not in link]
    lost = [page for page in PAGES if page.resolve() not in seen and page.parent.name != "decisions"]
    assert not lost, f"no link leads from the README to {[str(page.relative_to(ROOT)) for page in lost]}"


def test_the_limits_that_security_md_states_are_the_defaults() -> None:
    units = {"": 1, "MiB": 1 << 20, "s": 1, "day": 86_400}
    table = (ROOT / "SECURITY.md").read_text().partition("## Limits")[2].partition("\n## ")[0]
    stated = re.findall(r"`(\w+)` ([\d,]+)(?: (MiB|s|day))?", table)
    assert len(stated) >= 6
    for name, number, unit in stated:
        assert getattr(GatewayConfig(), name) == int(number.replace(",", "")) * units[unit], name


def where_to_look() -> list[tuple[str, list[str]]]:
    """The rows of the table "Where do I look for…" in docs/architecture.md: a task, and the files that it names."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## Where do I look for…\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    return [(row[0].strip(), re.findall(r"`([^`]+)`", row[1])) for row in rows]


def test_the_table_of_where_to_look_has_a_row_for_each_usual_task() -> None:
    assert len(where_to_look()) >= 20


@pytest.mark.parametrize(("task", "files"), where_to_look(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_file_that_a_reader_is_sent_to_exists(task: str, files: list[str]) -> None:
    assert files, f"{task!r} names no file in backticks"
    for file in files:
        found = ROOT / "src" / "sparring" / file
        assert found.exists(), f"{task!r}: src/sparring/{file} is not there"
