"""`gym:<id>`: any environment of Gymnasium as a game of one seat, n at once: gym:Taxi-v3, gym:module:Mine-v0, and
with arguments of the environment gym:FrozenLake-v1(map_name=8x8).

Its spaces become flat named leaves, and its values their arrays; PettingZoo uses the same spaces. Images larger than
84 x 84 are scaled down by areas; `gym:<id>(images=full)` leaves them as they are.
Where Gymnasium has a vector environment whose state can be set from outside it is used (`NativeVector`); any other
environment is stepped one by one, without the wrappers that only guard against wrong callers
(docs/decisions/0150-native-vectors.md).
"""

import importlib.util
import logging
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import register_game
from sparring.games.game_state import (
    REWARD_BOUND,
    SEEDS,
    OneSeatGame,
    check_option,
    id_with_options,
    library,
    name_and_options,
)
from sparring.games.protocol import RUNNING, Actions, Columns, Game, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, checked, discrete
from sparring.games.user_environments import (
    as_registered,
    check_answers,
    check_finite,
    check_spaces,
    check_step,
    copies_of,
    layers,
    name_of,
)
from sparring.user_code import import_from_current_folder, note_code
from sparring.wire.chunk import DTYPES, Array
from sparring.wire.ids import GameId

log = logging.getLogger(__name__)
_told_endless: set[str] = set()  # games that set no limit, of which that was said

MOST_TICKS = 10_000  # where an environment sets no limit of its own: who plays well would play for ever
_UNBOUNDED = 1e30  # some libraries write "no bound" as the largest float
_MOST_CHANNELS = 4
SIDE = 84  # pixels: as large as Atari's
BAND = 7  # scaled pixels of a line that are computed together
IMAGES, FULL_IMAGES = "images", "images=full"  # the option of ours in an id
NATIVE_FROM = 4  # games from which on one call for all is faster than a call for each


def open_game(text: str, n: int, *, rendered: bool = False) -> Game:
    """n environments of that id, or Missing; `rendered`: they draw pictures (`Environments.render`)."""
    gym = library("gymnasium", "gymnasium", "games gym:…")
    env_id, options = name_and_options(text, f"game 'gym:{text}'")
    check_option(options, IMAGES, ("full",), f"game 'gym:{text}'")
    given = {key: value for key, value in options.items() if key != IMAGES}
    native = None if given or rendered else _native_vector(gym, env_id, n)
    mode = {"render_mode": "rgb_array"} if rendered else {}
    envs, limit = _envs(gym, env_id, given, n if native is None else 1, mode)
    game = _from_envs(envs, limit, f"gym:{id_with_options(env_id, options)}")
    return game if native is None else NativeVector(game.spec, gym, *native)


def from_factory(make: Callable[[], Any], game_id: str, n: int) -> Game:
    """n environments that a user's function makes, as a game of that id."""
    gym = library("gymnasium", "gymnasium", f"game {game_id!r}")
    envs = [make() for _ in range(n)]
    for env in envs:
        if not isinstance(env, gym.Env):
            do = "Return a gymnasium.Env"
            raise ConfigError(f"the function made a {type(env).__name__}", where=f"game {game_id!r}", do=do)
    return _from_envs(
        envs, getattr(envs[0].spec, "max_episode_steps", None) or _time_limit(envs[0]), game_id, given=True
    )


def register(given: Any) -> str:
    """The id under which a Gymnasium environment, or a function that makes one, is played in this process."""
    gym, where = library("gymnasium", "gymnasium", "sparring.train(game)"), "sparring.train(game)"
    if isinstance(given, gym.Env):
        if as_registered(gym, given):
            return f"gym:{given.spec.id}"
        make = copies_of(gym, given, where)  # several are played at once
    elif callable(given):
        make = given
    else:
        do = "Give an id, a Gymnasium environment, or a function that makes one"
        raise ConfigError(f"it is a {type(given).__name__}", where=where, do=do)
    game_id = f"gym:python/{name_of(given)}"
    register_game(game_id, lambda n: from_factory(make, game_id, n))
    return game_id


def _time_limit(env: Any) -> int | None:
    """Of a TimeLimit around an environment that Gymnasium did not make."""
    found = (getattr(one, "_max_episode_steps", None) for one in layers(env))
    return next((int(limit) for limit in found if limit), None)


def _from_envs(envs: list[Any], limit: int | None, game_id: str, *, given: bool = False) -> "Environments":
    """`given`: by a Python program; environments of other modules than Gymnasium's are a user's, too."""
    where, kind = f"game {game_id!r}", type(envs[0].unwrapped)
    own = given or not kind.__module__.startswith("gymnasium.")
    if not kind.__module__.startswith("gymnasium."):
        note_code(getattr(sys.modules.get(kind.__module__), "__file__", None), "environment")
    check_spaces(envs[0], where)
    reader = observation_reader(envs[0].observation_space, where, full_images=FULL_IMAGES in game_id)
    action, to_env = action_leaf(envs[0].action_space, where)
    bounds = (-REWARD_BOUND, REWARD_BOUND)
    seat = SeatSpec(name="player", observation=reader.leaves, action=action, reward_bounds=bounds)
    spec = GameSpec(id=GameId(game_id), turns="simultaneous", seats=(seat,), max_ticks=limit or MOST_TICKS)
    if own:
        try:
            check_answers(envs[0], where)
        except Exception as error:
            if given or isinstance(error, ConfigError):
                raise
            # What its own code raises it raises again when it is played, and the run tells it then.
    if limit is None and game_id not in _told_endless:
        _told_endless.add(game_id)
        log.warning(
            f"{game_id} sets no limit to an episode: it is cut short after {MOST_TICKS:,} steps (another limit: "
            "gymnasium.wrappers.TimeLimit, or max_episode_steps where it is registered)"
        )
    return Environments(checked(spec, where), envs, reader, to_env, own=own)


class Environments(OneSeatGame):
    """n environments, stepped one by one."""

    refuses_masked = True  # actions that info["action_mask"] excludes; the environments themselves take them

    def __init__(
        self, spec: GameSpec, envs: list[Any], reader: "Reader", to_env: Callable[[Array], Any], *, own: bool = False
    ) -> None:
        """`own`: a user's environments, whose answers are looked at more closely."""
        super().__init__(len(envs))
        self._own, self._where = own, f"game {spec.id!r}"
        self.spec, self._envs, self._reader, self.to_env = spec, envs, reader, to_env
        self._steps = [env.step for env in envs]
        self._observation = {leaf.name: np.zeros((self.n, *leaf.shape), leaf.dtype) for leaf in reader.leaves}
        self._legal: Array | None = None  # until an environment's info has a mask, every action is legal

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`, each from its own seed."""
        rows = np.flatnonzero(which)
        shown = [self._envs[i].reset(seed=int(seeds[i]) % SEEDS) for i in rows.tolist()]
        self._start(which)
        self._show(rows, [one[0] for one in shown], [one[1] for one in shown])
        return self._copied_view()

    def step(self, actions: Actions) -> View:
        """Step each running game in turn."""
        running = self._ending == RUNNING
        legal, rows = self._legal if self.refuses_masked else None, np.flatnonzero(running)
        moves = self._checked_actions(0, actions[0], running, legal)
        to_env, steps = self.to_env, self._steps
        results = [steps[i](to_env(moves[i])) for i in rows.tolist()]
        reward, terminated, truncated = np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool)
        observations: Any = ()
        infos: Any = ()
        try:
            if results:
                observations, reward[rows], terminated[rows], truncated[rows], infos = zip(*results, strict=True)
            earned = self._advance(running, reward, terminated, truncated)
            self._show(rows, observations, infos)
        except (TypeError, ValueError):
            for i, stepped in zip(rows.tolist(), results, strict=True):
                check_step(self._envs[i], stepped, self._where)
            raise
        return self._copied_view(earned)

    def render(self) -> tuple[Any, float]:
        """A picture of the first game, as its environment draws it, and how many it shows in a second."""
        return self._envs[0].render(), float(self._envs[0].metadata.get("render_fps") or 0)

    def read(self, observation: Any) -> Columns | None:
        """What an environment showed, as leaves; None where it is none of its space."""
        with warnings.catch_warnings():  # that a list is not an array
            warnings.simplefilter("ignore")
            known = self._envs[0].observation_space.contains(observation)
        return self._reader.read(observation) if known else None

    def _show(self, rows: Array, observations: Any, infos: Any) -> None:
        if self._reader.plain and len(rows):
            ((_, column),) = self._observation.items()
            column[rows] = np.array(observations).reshape(len(rows), *column.shape[1:])
        else:
            for i, one in zip(rows.tolist(), observations, strict=True):
                for name, array in self._reader.read(one).items():
                    self._observation[name][i] = array
        if self._own:
            check_finite(self._observation, self._where)
        for i, info in zip(rows.tolist(), infos, strict=True):
            mask = info.get("action_mask") if info else None  # Taxi's convention; an environment gives one or never
            if mask is not None and self.spec.seats[0].action.kind == "discrete":
                if self._legal is None:
                    self._legal = np.ones((self.n, self.spec.seats[0].action.masks), bool)
                # All true where a seat is not asked, so that a softmax over it stays finite.
                self._legal[i] = np.asarray(mask, bool) if self._ending[i] == RUNNING else True

    def _copied_view(self, reward: Array | None = None) -> View:
        observation = {name: column.copy() for name, column in self._observation.items()}
        return self._view(observation, reward, None if self._legal is None else self._legal.copy())


Start = Callable[[Any, int], Array]  # the library and a seed → the state [numbers] of a game that begins


def _cartpole_start(gym: Any, seed: int) -> Array:
    generator, _ = gym.utils.seeding.np_random(seed)
    return np.asarray(generator.uniform(low=-0.05, high=0.05, size=(4,)))


STARTS: Mapping[str, Start] = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _cartpole_start}


class NativeVector(OneSeatGame):
    """One of Gymnasium's own vector environments, whose `state` is [numbers, n], as in its classic control.

    They take one seed for all copies and restart a game by themselves. Here each game's start is drawn from its own
    seed as the single environment draws it, and a finished game stands still until its reset, so that a vector of n
    plays exactly what n single environments play. That needs to know how an environment starts: STARTS lists them.
    """

    def __init__(self, spec: GameSpec, gym: Any, env: Any, start: Start) -> None:
        super().__init__(env.num_envs)
        self.spec, self._gym, self._env, self._start_state = spec, gym, env.unwrapped, start
        observation, _ = self._env.reset(seed=0)
        self._shown = np.zeros_like(observation)

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`, each from its own seed."""
        for i in np.flatnonzero(which).tolist():
            state = self._start_state(self._gym, int(seeds[i]) % SEEDS)
            self._env.state[:, i], self._shown[i] = state, state
        self._start(which)
        return self._view(self._observation())

    def step(self, actions: Actions) -> View:
        """Step every running game at once."""
        running, env = self._ending == RUNNING, self._env
        moves = self._checked_actions(0, actions[0], running)
        finished = None if running.all() else env.state[:, ~running]
        env.prev_done[:] = False  # or it would restart finished games
        env.steps[:] = 0  # this class counts ticks and applies the limit
        observation, reward, terminated, truncated, _ = env.step(moves)
        if finished is not None:
            env.state[:, ~running] = finished
            observation = np.where(running[:, None], observation, self._shown)
        self._shown = observation
        earned = self._advance(running, reward, terminated, truncated)
        return self._view(self._observation(), earned)

    def _observation(self) -> Columns:
        return {self.spec.seats[0].observation[0].name: self._shown.copy()}


def _native_vector(gym: Any, env_id: str, n: int) -> tuple[Any, Start] | None:
    """A vector environment of n games and how one starts; None where single environments are used."""
    known = gym.registry.get(env_id)
    entry = str(known.vector_entry_point) if known else ""
    if n < NATIVE_FROM or entry not in STARTS:
        return None
    return gym.make_vec(env_id, num_envs=n, vectorization_mode="vector_entry_point"), STARTS[entry]


def _envs(gym: Any, env_id: str, options: dict[str, Any], n: int, mode: dict[str, str]) -> tuple[list[Any], int | None]:
    """n environments, and after how many steps Gymnasium cuts an episode short.

    Made without the wrappers that check a caller's order and count steps: `Environments` does both itself.
    """
    if env_id.startswith("ALE/") and importlib.util.find_spec("ale_py"):
        import ale_py

        gym.register_envs(ale_py)
    if ":" in env_id:  # module:id of the user's own, which registers itself when it is imported
        import_from_current_folder()
    try:
        with warnings.catch_warnings():  # what a library thinks of its parts, which Box2D's import dies of as errors
            warnings.simplefilter("ignore", DeprecationWarning)
            first = gym.make(env_id, disable_env_checker=True, **options, **mode)
            limit = first.spec.max_episode_steps
            bare = replace(first.spec, max_episode_steps=None, order_enforce=False)
            return [gym.make(bare, disable_env_checker=True) for _ in range(n)], limit
    except (gym.error.Error, ModuleNotFoundError) as error:
        do = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` lists what there is"
        wrong = str(error).rstrip(".?").replace("\n", " ")
        raise Missing(wrong, where=f"game 'gym:{env_id}'", do=do) from None
    except Exception as error:  # an environment may refuse its arguments in any way
        if not options:
            raise
        raise wrong_options(error, f"game 'gym:{id_with_options(env_id, options)}'") from None


def wrong_options(error: Exception, where: str) -> ConfigError:
    """What an environment says about the arguments in its id."""
    said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
    return ConfigError(f"it does not take these options: {said}", where=where, do="Correct what is in parentheses")


@dataclass(frozen=True, slots=True)
class Reader:
    """How a value of one space becomes arrays."""

    leaves: tuple[Leaf, ...]
    read: Callable[[Any], Columns]
    plain: bool = False  # its one leaf holds a value's numbers as they come, so many values can be read at once


def observation_reader(space: Any, where: str, *, full_images: bool = False) -> Reader:
    """The leaves of an observation space: one for each space that is not a Dict or Tuple, named by its path."""
    reader = _reader(space, "", where)
    return reader if full_images else _with_small_images(reader)


def _with_small_images(reader: Reader) -> Reader:
    """The same with each side of an image at most SIDE pixels long."""
    large = {leaf.name: leaf.shape for leaf in reader.leaves if leaf.kind == "image" and max(leaf.shape[1:]) > SIDE}
    if not large:
        return reader
    bands = {name: (_bands(high), _bands(wide)) for name, (_, high, wide) in large.items()}

    def small(name: str, image: Array) -> Array:
        if name not in bands:
            return image
        (rows, columns), whole = bands[name], image.astype(np.float32, order="C")
        lines = np.concatenate([share @ whole[:, used] for used, share in rows], axis=1)
        scaled = np.concatenate([lines[:, :, used] @ share.T for used, share in columns], axis=2)
        return np.asarray(np.rint(scaled), np.uint8)

    leaves = (
        msgspec.structs.replace(leaf, shape=(leaf.shape[0], *(min(side, SIDE) for side in leaf.shape[1:])))
        if leaf.name in large
        else leaf
        for leaf in reader.leaves
    )
    return Reader(tuple(leaves), lambda value: {name: small(name, image) for name, image in reader.read(value).items()})


def _bands(side: int) -> list[tuple[slice, Array]]:
    """`_areas` in groups of BAND scaled pixels: the pixels that a group is made of, and their shares.

    A few small products instead of a large one: BLAS does not divide them among threads, which wait for each other on a
    busy machine (a screen of 280 x 480 on two cores took 80 ms, and 1.4 ms so; 0.8 ms instead of 2.5 with one thread).
    """
    areas, found = _areas(side), []
    for first in range(0, len(areas), BAND):
        shares = areas[first : first + BAND]
        pixels = np.flatnonzero(shares.any(axis=0))
        used = slice(int(pixels[0]), int(pixels[-1]) + 1)
        found.append((used, np.ascontiguousarray(shares[:, used])))
    return found


def _areas(side: int) -> Array:
    """float32 [at most SIDE, side]: the share that each pixel of a line has in each pixel of the scaled line."""
    count = min(side, SIDE)
    edges = np.linspace(0, side, count + 1)[:, None]
    pixels = np.arange(side)
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.asarray(np.maximum(overlap, 0) * (count / side), np.float32)


def action_leaf(space: Any, where: str) -> tuple[Leaf, Callable[[Array], Any]]:
    """The action leaf, and how one action becomes what the environment takes."""
    kind = type(space).__name__
    if kind == "Discrete":
        start = int(space.start)
        return discrete(int(space.n)), lambda chosen: int(chosen) + start
    if kind in ("MultiDiscrete", "MultiBinary"):
        leaf = _multi_discrete("action", space)
        return leaf, lambda chosen: chosen.reshape(space.shape).astype(space.dtype)
    if kind == "Box":
        low, high = _bounds(space)
        shape = tuple(space.shape) or (1,)
        leaf = Leaf(name="action", kind="box", shape=shape, dtype="float32", low=low, high=high)
        # A leaf has one bound for all entries, the space one for each.
        return leaf, lambda chosen: np.clip(chosen.reshape(space.shape), space.low, space.high).astype(space.dtype)
    raise _unsupported(space, "action", where)


def _reader(space: Any, path: str, where: str) -> Reader:
    kind = type(space).__name__
    if kind == "Dict":
        return _joined({str(key): (key, inner) for key, inner in space.spaces.items()}, path, where)
    if kind == "Tuple":
        return _joined({str(i): (i, inner) for i, inner in enumerate(space.spaces)}, path, where)
    name = f"observation{path or ('/image' if _is_image(space) else '/state')}"
    if kind == "Discrete":
        start, leaf = int(space.start), discrete(int(space.n), name)
        return Reader((leaf,), lambda value: {name: np.asarray(int(value) - start, np.int32)})
    if kind in ("MultiDiscrete", "MultiBinary"):
        leaf = _multi_discrete(name, space)
        return Reader((leaf,), lambda value: {name: np.asarray(value, np.int32).reshape(-1)})
    if kind == "Box":
        return _image(name, space) if _is_image(space) else _numbers(name, space)
    raise _unsupported(space, name, where)


def _joined(inner: dict[str, tuple[Any, Any]], path: str, where: str) -> Reader:
    if not inner:
        raise ConfigError(f"observation{path} is an empty space", where=where, do="Show the player something")
    parts = [(key, _reader(space, f"{path}/{name}", where)) for name, (key, space) in inner.items()]
    leaves = tuple(leaf for _, part in parts for leaf in part.leaves)
    return Reader(leaves, lambda value: {k: a for key, part in parts for k, a in part.read(value[key]).items()})


def _numbers(name: str, space: Any) -> Reader:
    dtype = _dtype(space.dtype)
    shape = tuple(space.shape) or (1,)
    low, high = _bounds(space)
    kind: Any = "vector" if len(shape) == 1 else "box"
    leaf = Leaf(name=name, kind=kind, shape=shape, dtype=dtype, low=low, high=high)
    return Reader((leaf,), lambda value: {name: np.asarray(value, dtype).reshape(shape)}, plain=True)


def _image(name: str, space: Any) -> Reader:
    """Images travel as [channels, height, width]; Gymnasium's have their channels last, or none."""
    shape = tuple(space.shape)
    chw = (1, *shape) if len(shape) == 2 else (shape[2], shape[0], shape[1])
    leaf = Leaf(name=name, kind="image", shape=chw, dtype="uint8", low=0.0, high=255.0)
    if len(shape) == 2:
        return Reader((leaf,), lambda value: {name: np.asarray(value)[None]})
    return Reader((leaf,), lambda value: {name: np.asarray(value).transpose(2, 0, 1)})


def _is_image(space: Any) -> bool:
    if type(space).__name__ != "Box" or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] <= _MOST_CHANNELS)


def _multi_discrete(name: str, space: Any) -> Leaf:
    size = math.prod(space.shape)
    choices = (2,) * size if type(space).__name__ == "MultiBinary" else tuple(int(n) for n in np.ravel(space.nvec))
    return Leaf(name=name, kind="multi-discrete", shape=(size,), dtype="int32", choices=choices)


def _dtype(dtype: Any) -> str:
    """float64 becomes float32, which is what networks see; what the wire lacks becomes the next wider integer."""
    name = np.dtype(dtype).name
    if np.dtype(dtype).kind == "f":
        return "float32"
    wider = {"bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    return name if name in DTYPES else wider[name]


def _bounds(space: Any) -> tuple[float | None, float | None]:
    low, high = float(np.min(space.low)), float(np.max(space.high))
    return (low if low > -_UNBOUNDED else None), (high if high < _UNBOUNDED else None)


def _unsupported(space: Any, name: str, where: str) -> ConfigError:
    return ConfigError(
        f"{name} is a {type(space).__name__} space",
        where=where,
        do="Use Discrete, MultiDiscrete, MultiBinary, Box, or for observations Dict and Tuple of them",
    )
