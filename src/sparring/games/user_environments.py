"""A user's own Gymnasium environments: how copies of a given object are made, what such a game is called, and whether
an environment answers as its spaces and Gymnasium's interface say."""

import copy
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparring.errors import ConfigError
from sparring.wire.chunk import Array

_GUARDS = ("OrderEnforcing", "PassiveEnvChecker")  # wrappers that gymnasium.make adds, and that change nothing
_PLAIN = (bool, int, float, str, bytes, type(None))


def as_registered(gym: Any, env: Any) -> bool:
    """Whether `gymnasium.make(id)` makes an equal environment: the given one was not changed, wrapped or played."""
    spec = env.spec
    if spec is None or gym.registry.get(spec.id) is None:
        return False
    fresh = gym.make(spec.id)
    try:
        if fresh.spec != spec:  # asking also fills what wrappers remember of it
            return False
        same = [type(one) for one in layers(env)] == [type(one) for one in layers(fresh)]
        return same and all(
            _equal(vars(one), vars(other)) for one, other in zip(layers(env), layers(fresh), strict=True)
        )
    finally:
        fresh.close()


def copies_of(gym: Any, env: Any, where: str) -> Callable[[], Any]:
    """What makes others like a given environment, which is left as it is: copies; where it cannot be copied, as those
    of Box2D, what its own description makes."""
    try:
        copy.deepcopy(env)
        return lambda: copy.deepcopy(env)
    except Exception as error:  # noqa: BLE001  (libraries raise anything)
        reason = f"{type(error).__name__}: {error}"
    try:
        spec = env.spec
        gym.make(spec).close()
        return lambda: gym.make(spec)
    except Exception:  # noqa: BLE001
        wrong = f"it can be copied neither as an object nor by its spec ({reason})"
        raise ConfigError(wrong, where=where, do="Give a function that makes one") from None


def name_of(given: Any) -> str:
    """A name for an environment, or for what makes one: the same for the same code and arguments, and another one where
    these differ. A class or function of its own is named as it is."""
    if isinstance(given, type) or (inspect.isfunction(given) and given.__name__ != "<lambda>"):
        return _letters(given.__name__)
    if hasattr(given, "unwrapped"):
        chain = [one for one in layers(given) if type(one).__name__ not in _GUARDS]
        told = [(type(one).__qualname__, _described(vars(one))) for one in chain]
        return f"{'-'.join(_letters(type(one).__name__) for one in chain)}-{_digest(told)}"
    name = getattr(given, "__name__", type(given).__name__)
    return f"{_letters(name)}-{_digest(_described(given))}"


def layers(env: Any) -> Iterator[Any]:
    """An environment's wrappers, from the outermost one to what they wrap."""
    while True:
        yield env
        if (inner := vars(env).get("env")) is None or env is env.unwrapped:
            return
        env = inner


def check_spaces(env: Any, where: str) -> None:
    """ConfigError where an environment does not say what it shows and takes."""
    if missing := [name for name in ("observation_space", "action_space") if getattr(env, name, None) is None]:
        raise ConfigError(f"it has no {' and no '.join(missing)}", where=where, do="Set it in __init__ or in the class")


def check_answers(env: Any, where: str) -> None:
    """ConfigError where a first reset and step do not answer as its spaces and Gymnasium's interface say."""
    parameters = inspect.signature(env.reset).parameters
    if "seed" not in parameters and all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
        do = "Define reset(self, *, seed=None, options=None)"
        raise ConfigError("its reset takes no seed", where=where, do=do)
    begun = env.reset(seed=0)
    if not isinstance(begun, tuple) or len(begun) != 2:
        raise ConfigError("its reset gives no pair", where=where, do="Return observation, info")
    _check_observation(env, begun[0], "reset", where)
    check_step(env, env.step(env.action_space.sample()), where)


def check_step(env: Any, stepped: Any, where: str) -> None:
    """ConfigError where a step gave something else than Gymnasium's five values."""
    if not isinstance(stepped, tuple) or len(stepped) != 5:
        do = "Return observation, reward, terminated, truncated, info"
        raise ConfigError("its step gives no five values", where=where, do=do)
    try:
        float(stepped[1])
    except (TypeError, ValueError):
        wrong = f"its step gives the reward {stepped[1]!r:.60}"
        raise ConfigError(wrong, where=where, do="Return a number") from None
    _check_observation(env, stepped[0], "step", where)


def check_finite(columns: dict[str, Array], where: str) -> None:
    """ConfigError where an observation has a number that is none."""
    for name, column in columns.items():
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            do = "Give finite observations: networks cannot learn from NaN or infinity"
            raise ConfigError(f"its {name} has a number that is not finite", where=where, do=do)


def _check_observation(env: Any, seen: Any, verb: str, where: str) -> None:
    space = env.observation_space
    if space.shape is not None and np.shape(seen) != space.shape:
        do = f"Return {space.shape}, or declare another observation_space"
        raise ConfigError(f"its {verb} gives an observation of shape {np.shape(seen)}", where=where, do=do)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if hasattr(one, "unwrapped") or "__eq__" not in _defined(type(one)):
        return True  # a layer, which is compared by itself, or something that cannot be compared
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  (objects compare as they like)
        return False


def _defined(kind: type) -> set[str]:
    """Names that a class or what it inherits from defines, `object` apart."""
    return {name for one in kind.__mro__ if one is not object for name in vars(one)}


def _described(one: Any) -> Any:
    """What of an object is the same in another process: plain values and code, no addresses."""
    if isinstance(one, _PLAIN):
        return one
    if isinstance(one, dict):
        return sorted((str(key), _described(value)) for key, value in one.items())
    if isinstance(one, tuple | list):
        return [_described(value) for value in one]
    if isinstance(one, functools.partial):
        return [_described(one.func), _described(one.args), _described(one.keywords)]
    if inspect.isfunction(one):
        code, cells = one.__code__, [cell.cell_contents for cell in one.__closure__ or ()]
        constants = [value for value in code.co_consts if isinstance(value, _PLAIN)]
        return [
            one.__module__,
            code.co_code.hex(),
            code.co_names,
            *map(_described, (constants, one.__defaults__, cells)),
        ]
    if isinstance(one, type):
        return f"{one.__module__}.{one.__qualname__}"
    return repr(one) if type(one).__module__.startswith("gymnasium.spaces") else type(one).__qualname__


def _digest(told: Any) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:8]


def _letters(name: str) -> str:
    return "-".join(re.findall("[A-Za-z0-9_]+", name))
