"""The shape of the code, as a test: small files named for their concept, imports that follow the data, no pickle."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "sparring"
FILES = sorted(SRC.rglob("*.py"))

EVERYWHERE = {"wire", "config", "errors"}
MAY_KNOW = {  # the architecture: what each stage may import beside itself and EVERYWHERE
    "wire": set(),
    "games": set(),
    "client": {"games", "learn.policies", "stream"},  # inside the game: no torch, no server
    "gateway": {"games", "store", "stream", "registry", "learn.policies", "dashboard"},
    "stream": {"store.protocol"},  # a stream answers as a store does
    "sink": {"games", "store", "stream", "registry.bucket", "registry.durable"},
    "store": {"games"},
    "replay": {"games", "store", "learn.protocol"},  # a table answers with the Batch that a learner is fed
    "learn": {"games", "replay", "store", "registry", "services", "hosts"},
    "services": set(),
    "hosts": {"services"},
    "registry": set(),
    "dashboard": {"games", "store", "registry"},
}
EMPTY_WORDS = re.compile(r"(^|_)(util|helper|manager|common|misc|base|core|stuff)s?(_|$)")
FILE_LINES, ALGORITHM_LINES, FUNCTION_LINES = 400, 300, 50
TYPE_IGNORES = 30  # may only fall


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_file_is_small_and_named_for_its_concept(path: Path) -> None:
    text = path.read_text()
    budget = ALGORITHM_LINES if path.parent.name == "algorithms" else FILE_LINES
    lines = text.count("\n")
    assert lines <= budget, f"{name(path)} has {lines} lines; split it at a concept, the budget is {budget}"
    assert not EMPTY_WORDS.search(path.stem), f"{name(path)}: name it for what it holds, not for its role"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{name(path)}:{node.lineno} {node.name} is {length} lines"


@pytest.mark.parametrize("stage", MAY_KNOW)
def test_imports_follow_the_data(stage: str) -> None:
    allowed = MAY_KNOW[stage] | EVERYWHERE | {stage}
    for path in (SRC / stage).rglob("*.py"):
        for known in re.findall(r"^\s*(?:from|import) sparring\.([\w.]+)", path.read_text(), re.M):
            ok = any(known == one or known.startswith(f"{one}.") for one in allowed)
            assert ok, f"{name(path)}: {stage} may not know {known}; see MAY_KNOW"


def test_every_stage_is_in_the_table_and_on_the_journey() -> None:
    stages = {path.name for path in SRC.iterdir() if path.is_dir() and path.name not in ("__pycache__", "cli")}
    assert stages == set(MAY_KNOW)
    page = (ROOT / "docs" / "architecture.md").read_text()
    for stage in stages | {"cli"}:
        assert f"`{stage}/`" in page, f"docs/architecture.md forgets {stage}/"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_is_ever_unpickled_or_executed(path: Path) -> None:
    forbidden = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & forbidden
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in forbidden
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "torch.load", "torch.save"}, f"{name(path)}:{node.lineno} {called}"
            if called in {"np.load", "numpy.load"}:
                assert not any(k.arg == "allow_pickle" for k in node.keywords), f"{name(path)}:{node.lineno}"


def test_ignored_types_only_grow_fewer() -> None:
    found = sum(path.read_text().count("# type: ignore") for path in FILES)
    assert found <= TYPE_IGNORES, f"{found} ignored types; the limit is {TYPE_IGNORES}"


def test_no_committed_file_names_a_registry_or_a_machine() -> None:
    here = "|".join(re.escape(f"{folder}/") for folder in (ROOT.parent, Path.home()) if len(folder.parts) > 1)
    forbidden = re.compile(rf"pypi\.org|registry\.npmjs|files\.pythonhosted|(?<![\w.])(?:{here})")
    for path in [*ROOT.glob("*.*"), *ROOT.glob("docs/**/*.md"), *FILES, ROOT / "Makefile", ROOT / ".ci" / "run"]:
        if path.is_file() and path.suffix not in (".pyc",):
            assert not forbidden.search(path.read_text()), f"{name(path)} names a registry or a path of one machine"
