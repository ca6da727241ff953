"""Code that a user names as `module:name` on a command line or in spar.toml, or gives from Python; never from a request
or a model card. What such code raises is told as theirs (`user_error`)."""

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError, Missing, SparringError, UserCodeError

GIVEN = "python:"  # before the name of an object that a Python program gave
_given: dict[str, Any] = {}
_roles: dict[str, str] = {}  # file of a user's code → what it is: "network", "game" …
_OURS = str(Path(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def import_from_current_folder() -> None:
    """Let imports find modules in the current folder, where an installed command does not look by itself."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def load_code(name: str, what: str) -> Any:
    """The object at `module:name`, or the one that `name_given` named so; ConfigError where `name` has another form,
    Missing where nothing is there.

    `what` it should be ("network", "policy") begins the error's sentence. The current folder is searched, too.
    """
    where = f"{what} {name!r}"
    if name in _given:
        return _given[name]
    if name.startswith(GIVEN):
        raise Missing("a Python program gave it", where=where, do=f"Give it again: sparring.train(…, {what}=…)")
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError("it is no module:name", where=where, do="Write the module, a colon, and the name in it")
    loaded = import_code(module, what, where)
    if not hasattr(loaded, attribute):
        raise Missing(f"{module} has no {attribute!r}", where=where, do="Name one that is there")
    return getattr(loaded, attribute)


def import_code(module: str, what: str, where: str) -> Any:
    """A user's module, also of the current folder; Missing where there is none."""
    import_from_current_folder()
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise Missing(f"there is no module {module!r}", where=where, do="Correct its name") from None
    note_code(loaded.__file__, what)
    return loaded


def name_given(code: Any, what: str) -> str:
    """A name for an object that a Python program gives as its `what`: module:name where any process can import it, else
    one that this process alone knows (`is_given`)."""
    name = getattr(code, "__qualname__", type(code).__qualname__).rpartition(".")[2].strip("<>")
    module = getattr(code, "__module__", "__main__")
    with suppress(TypeError, OSError):  # of a built-in, or typed into an interpreter
        note_code(
            inspect.getsourcefile(code if isinstance(code, type) or inspect.isfunction(code) else type(code)), what
        )
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is code:
        return f"{module}:{name}"
    _given[f"{GIVEN}{name}"] = code
    return f"{GIVEN}{name}"


def is_given(name: str) -> bool:
    """Whether only the process in which a Python program gave it can load this code."""
    return name.startswith(GIVEN)


def note_code(file: str | None, what: str) -> None:
    """From now on errors that this file raises are told as those of the user's `what`, also in an installed package."""
    if file is not None and not file.startswith(_OURS):
        _roles[file] = what if _roles.get(file, what) == what else "code"


def user_error(error: BaseException) -> UserCodeError | None:
    """An error as that of the user's own code, which lies below ours in its traceback; None where there is none.

    Theirs are files outside this package, the standard library and installed packages, and all that `note_code` got.
    What stands above our first line in the traceback only called us.
    """
    if isinstance(error, SparringError):  # it has words of its own
        return None
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith(_OURS)), len(frames))
    own = [i for i in range(first, len(frames)) if _is_users(frames[i].filename)]
    if own:
        last = frames[own[-1]]
        file, place = last.filename, f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
    elif isinstance(error, SyntaxError) and error.filename and _is_users(error.filename) and first < len(frames):
        file, place = error.filename, f"{Path(error.filename).name}:{error.lineno}"
    else:
        return None
    said = " ".join(str(error).split())
    wrong = f"{type(error).__name__}: {said}".rstrip(".: ")
    told = UserCodeError(wrong, where=f"your {_roles.get(file, 'code')} {place}", do="Correct it")
    shown = traceback.format_list(frames[own[0] :]) if own else []
    told.story = "".join(["Traceback, from your code on:\n", *shown, *traceback.format_exception_only(error)])
    return told


@contextmanager
def told_as_users() -> Iterator[None]:
    """What a user's code raises in this block leaves it as a UserCodeError."""
    try:
        yield
    except SparringError:
        raise
    except Exception as error:
        if (told := user_error(error)) is None:
            raise
        raise told from error


def _is_users(file: str) -> bool:
    if file in _roles:
        return True
    if file.startswith("<"):
        return file.startswith(("<stdin", "<ipython"))
    library = file.startswith(_LIBRARIES) or {"site-packages", "dist-packages"} & set(Path(file).parts)
    return not library and not file.startswith(_OURS)
