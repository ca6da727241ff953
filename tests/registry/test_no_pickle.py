"""Nothing in the package can run code out of a file: no pickle, by whatever name."""

import ast
from pathlib import Path

import pytest

import sparring

SOURCE = Path(sparring.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
CALLS = {("torch", "load"), ("torch", "save"), ("pandas", "read_pickle"), ("pd", "read_pickle")}


def strays(tree):
    """Each import or call that could unpickle, as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = []
        yield from (name for name in names if name.split(".")[0] in MODULES or tuple(name.split(".")) in CALLS)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in CALLS:
            yield f"{node.value.id}.{node.attr}"
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and getattr(node.value, "value", None) is not False
        ):
            yield "allow_pickle"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_can_unpickle(path):
    assert not list(strays(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "import torch\ntorch.load(x)", "from torch import load",
     "def f():\n import shelve as s", "np.load(x, allow_pickle=True)", "np.load(x, allow_pickle=yes)"],
)  # fmt: skip
def test_the_check_itself_finds_each_way(text):
    assert list(strays(ast.parse(text)))
