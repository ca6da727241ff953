"""The architecture as a test: imports follow the data, no import cycles between folders, names that say something."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "sparring"
FILES = sorted(SRC.rglob("*.py"))

EVERYWHERE = {"wire", "config", "errors", "durable", "jit", "user_code", "urls", "aws", "closable"}
MAY_KNOW = {  # the architecture: what each stage may import beside itself and EVERYWHERE
    "wire": set(),
    "games": set(),
    "nets": {"games"},
    "client": {"games", "nets", "stream"},  # inside the game: no torch, no server
    "gateway": {"games", "nets", "store", "stream", "registry", "dashboard", "nodes.board"},
    "stream": {"store.protocol"},  # a stream answers as a store does
    "sink": {"games", "store", "stream", "registry.s3.bucket"},
    "store": {"games"},
    "replay": {"games", "store"},
    "acting": {"games", "nets", "replay", "registry"},
    "league": {"games", "nets", "acting", "registry", "pool", "services", "store.protocol"},
    "learn": {
        *("games", "nets", "acting", "league", "pool", "replay", "store", "registry", "services", "hosts", "processes")
    },
    "nodes": {
        "games",
        "nets",
        "acting",
        "learn",
        "replay",
        "gateway",
        "registry",
        "store.protocol",
    },  # the gateway's sockets
    "services": set(),
    "hosts": {"services", "processes"},
    "processes": set(),
    "registry": set(),
    "pool": {"registry", "services", "hosts.protocol"},  # models that are read often, over the registry
    "dashboard": {"games", "league", "store", "registry", "learn.runs.summary", "nodes.board"},
    "api": {"games", "nets", "acting", "learn", "registry"},
}
NOUNS: set[str] = {"matchmaking"}  # names that end in -ing and that engineers search for
EMPTY_WORDS = re.compile(r"(^|_)(util|helper|manager|common|misc|base|core|stuff)s?(_|$)")
TYPE_IGNORES = 30  # may only fall


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_names_of_files_say_what_they_hold() -> None:
    for path in FILES:
        assert not EMPTY_WORDS.search(path.stem), f"{name(path)}: name it for what it holds, not for its role"
        assert not path.stem.endswith("ing") or path.stem in NOUNS, f"{name(path)}: name the thing, not the activity"


@pytest.mark.parametrize("stage", MAY_KNOW)
def test_imports_follow_the_data(stage: str) -> None:
    allowed = MAY_KNOW[stage] | EVERYWHERE | {stage}
    for path in (SRC / stage).rglob("*.py"):
        for known in re.findall(r"^\s*(?:from|import) sparring\.([\w.]+)", path.read_text(), re.M):
            ok = any(known == one or known.startswith(f"{one}.") for one in allowed)
            assert ok, f"{name(path)}: {stage} may not know {known}; see MAY_KNOW"


def imported_modules(path: Path) -> set[tuple[str, ...]]:
    """The package's modules that a file imports when it is imported itself, as paths below `sparring`."""
    found: set[tuple[str, ...]] = set()
    for node in ast.parse(path.read_text()).body:  # imports inside functions are made later: they close no cycle
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sparring":
            base = tuple((node.module or "").split(".")[1:])
            for alias in node.names:
                whole = SRC.joinpath(*base, alias.name)
                found.add((*base, alias.name) if whole.is_dir() or whole.with_suffix(".py").exists() else base)
    return found


@pytest.mark.parametrize("stage", MAY_KNOW)
def test_parts_of_a_stage_import_each_other_in_one_direction(stage: str) -> None:
    needs: dict[str, set[str]] = {}
    for path in (SRC / stage).rglob("*.py"):
        part = path.relative_to(SRC / stage).parts[0].removesuffix(".py")
        inside = {module[1] for module in imported_modules(path) if len(module) > 1 and module[0] == stage}
        needs.setdefault(part, set()).update(inside - {part})
    try:
        tuple(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"{stage}: {' needs '.join(error.args[1])}")


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
        if path.is_file() and path.suffix != ".pyc" and path.name != ".git":  # a file in a worktree
            assert not forbidden.search(path.read_text()), f"{name(path)} names a registry or a path of one machine"
