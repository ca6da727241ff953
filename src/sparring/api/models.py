"""`sparring.load` and `sparring.evaluate`: a model as an object that predicts, and how well it plays."""

import inspect
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from sparring import config as configs
from sparring.acting import evaluate as games
from sparring.acting.players import Lineup, Named, check_has_others, named
from sparring.acting.return_histogram import check_format, draw, save_picture, summary
from sparring.errors import ConfigError, Missing, SparringError, UserCodeError
from sparring.games.catalogue import open_game, spec_of
from sparring.games.gymnasium import Environments
from sparring.games.protocol import Columns
from sparring.games.spec import GameSpec, SeatSpec
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.nets.policies import BUILT_IN, bounds_of, choose, squashed
from sparring.nets.shapes import STATE, initial_state
from sparring.nets.tree_search import SearchModel, TreeSearch
from sparring.registry import model_in, open_registry
from sparring.wire.chunk import Array
from sparring.wire.model import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Observation = Any  # an array, or a mapping of leaf name → array; with or without a batch axis in front
P = ParamSpec("P")
_COMMANDS = re.compile(
    r"spar train ([^\s`-][^\s`]*)((?: --[a-z-]+ [^\s`]+)*)"  # a run that an error advises; then other commands, options
    r"|(spar [^`]*)|--([a-z][a-z-]*)"
)
_ARGUMENTS = {  # options of the command line whose arguments have other names
    **{"from": "source", "algo-set": "settings", "set": "config_set", "no-promote": "promote=False"},
    **{"resume": "resume=True", "cert": "nodes_cert", "key": "nodes_key", "sweep": "sparring.sweep"},
}
T = TypeVar("T")


def check_arguments(call: Callable[P, T]) -> Callable[P, T]:
    """The function, which refuses an argument that is not of its annotation's types with a ConfigError.

    NumPy's numbers are taken as Python's, and whole floats (1e6) where an int is expected.
    """
    signature = inspect.signature(call)

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:  # something is missing, or unknown
            unknown = "settings" in signature.parameters and "unexpected" in str(error)
            do = "; those of the algorithm go into settings={…}" if unknown else ""
            raise TypeError(f"sparring.{call.__name__}() {error}{do}") from None
        for name, value in bound.arguments.items():
            hint = signature.parameters[name].annotation
            if hint is not Any:
                hints = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
                bound.arguments[name] = _of_types(value, hints, name, f"sparring.{call.__name__}")
        try:
            return call(*bound.args, **bound.kwargs)
        except SparringError as error:
            if not isinstance(error, UserCodeError):
                error.reword(python_words)
            raise

    return checked


def python_words(text: str) -> str:
    """A sentence about the command line, about Python: --from is source, `spar train GAME --algo bc` a call."""

    def argument(option: str) -> str:
        return _ARGUMENTS.get(option, option.replace("-", "_"))

    def in_python(found: re.Match[str]) -> str:
        game, options, command, option = found.groups()
        if option:
            return argument(option)
        if command:
            return "sparring.train" if command == "spar train" else command
        given = "".join(f", {argument(name)}={value!r}" for name, value in re.findall(r"--(\S+) (\S+)", options))
        return f"sparring.train({game!r}{given})"

    return _COMMANDS.sub(in_python, text)


def _of_types(value: Any, hints: tuple[Any, ...], name: str, where: str) -> Any:
    types = tuple(get_origin(hint) or hint for hint in hints)
    value = value.item() if isinstance(value, np.generic) else value
    if int in types and isinstance(value, float) and value.is_integer():
        return int(value)
    expected = (*types, int) if float in types else types
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in types):
        names = [one.__name__ for one in types if one is not type(None)]
        is_run = hasattr(type(value), "models")  # api/runs.py, which imports this
        do = "Use the run's `model`, which is loaded" if is_run else f"Give {' or '.join(names)}"
        raise ConfigError(f"{name} = {value!r}", where=where, do=do)
    return value


class LoadedModel:
    """A model that acts in this process, in any seat that sees what it was trained on; `files` is the stored model."""

    def __init__(self, model: Model, spec: GameSpec, *, seed: int = 0) -> None:
        self.card, self.spec, self.files = model.card, spec, model
        self.id, self.game = model.id, str(spec.id)
        self._forward = forward_without_torch(model.card.network, read_weights(model))
        self._policy = BUILT_IN[model.card.policy]
        self._rng = np.random.default_rng(seed)
        self._tree: TreeSearch | None = None

    def __repr__(self) -> str:
        return f"<sparring model {self.id[:12]} of {self.game}, {self.card.lineage.algorithm}>"

    def predict(
        self,
        observation: Observation,
        legal: Array | None = None,
        deterministic: bool | None = None,
        *,
        seat: int | None = None,
        search_ms: float = 0.0,
        state: bytes | None = None,
    ) -> Any:
        """The action for one observation, or one for each of a batch; ConfigError where the shapes do not fit.

        An action is an int, or an array for boxes and several choices. `legal` is a mask of the choices. With
        `deterministic=False` the action is drawn from the model's policy, with True it is the best one; None does what
        the model's card says: models of games with hidden information draw, all others take the best. With `search_ms`
        the best action is looked for so long, for one observation of a game without hidden information or chance;
        `state` is what `save()` of the game gave, where the observation does not show all of it. `seat` is by default
        the first that the model plays.
        """
        seat = self._seat(seat)
        if search_ms:
            return self._searched(observation, legal, seat, search_ms, state)
        action, _ = self.predict_with_state(observation, None, legal, deterministic, seat=seat)
        return action

    def predict_with_state(
        self,
        observation: Observation,
        state: Array | None,
        legal: Array | None = None,
        deterministic: bool | None = None,
        *,
        seat: int | None = None,
    ) -> tuple[Any, Array | None]:
        """Like `predict`, for a model with memory: the action, and the state that its next step of the episode takes.

        With `state=None` an episode begins. A model without memory gives None.
        """
        spec = self.spec.seats[self._seat(seat)]
        seen = None if self._environment is None else self._environment.read(observation)
        if seen is None:
            columns, batched = _columns(observation, spec, self.spec.frame_stack, self.game)
        else:
            columns, batched = {name: column[None] for name, column in seen.items()}, False
        rows = len(next(iter(columns.values())))
        mask = None if legal is None else self._array(legal, (rows, spec.action.masks), batched, "legal").astype(bool)
        if mask is not None and not mask.any(axis=1).all():
            raise ConfigError("legal allows no choice", where=f"model of {self.game}", do="Allow at least one")
        if self._forward.spec.memory is None:
            out = self._forward(columns)
        else:
            held = initial_state(self._forward.spec, rows)
            out = self._forward(columns, held if state is None else self._array(state, held.shape, batched, "state"))
        action = self._chosen(out, spec, mask, not self.card.samples if deterministic is None else deterministic)
        after = out.get(STATE)
        discrete = spec.action.kind == "discrete"
        if self._environment is not None:
            to_env = self._environment.to_env
            action = action + to_env(np.zeros((), np.int32)) if discrete else np.stack([to_env(one) for one in action])
        if batched:
            return action, after
        return (int(action[0]) if discrete else action[0]), (None if after is None else after[0])

    @cached_property
    def _environment(self) -> Environments | None:
        """Of a game gym:…, whose own observations are read, and whose own actions are given: its spaces may have other
        shapes, bounds and starts than the leaves that the network sees."""
        game = open_game(self.game) if self.game.startswith("gym:") else None
        return game if isinstance(game, Environments) else None

    def _seat(self, seat: int | None) -> int:
        plays = self.card.kind or range(len(self.spec.seats))
        if seat is not None and seat not in plays:
            do = f"It plays {', '.join(map(str, plays))}" if self.card.kind else f"Count from 0 to {plays[-1]}"
            raise ConfigError(f"seat {seat!r}", where=f"model of {self.game}", do=do)
        return plays[0] if seat is None else seat

    def _searched(
        self, observation: Observation, legal: Array | None, seat: int, search_ms: float, state: bytes | None
    ) -> int:
        columns, batched = _columns(observation, self.spec.seats[seat], self.spec.frame_stack, self.game)
        if batched or not 0 < search_ms < float("inf"):
            do = "Search for more than 0 ms, one observation at a time"
            raise ConfigError(f"search_ms = {search_ms!r}", where=f"model of {self.game}", do=do)
        if self._tree is None:
            self._tree = TreeSearch(lambda n: open_game(self.game, n), self.spec)
        seen = {name: column[0] for name, column in columns.items()}
        if legal is not None:
            legal = self._array(legal, (1, self.spec.seats[seat].action.masks), False, "legal")[0]
        row = self._tree.row_of(seat, seen) if state is None else self._tree.row_of_state(state)

        def run(leaves: Columns) -> dict[str, Array]:
            return self._forward({name: column for name, column in leaves.items() if name != "legal"})

        model = SearchModel(self.card, self.spec, run)
        found = self._tree.search(row, seat, model, time.monotonic() + search_ms / 1000, legal)
        return int(found.scores.argmax())

    def _array(self, given: Any, shape: tuple[int, ...], batched: bool, name: str) -> Array:
        """What goes with an observation, as [rows, …]."""
        wanted = shape if batched else shape[1:]
        if np.shape(given) != wanted:
            do = f"Give {wanted} of numbers"
            raise ConfigError(f"{name} has shape {np.shape(given)}", where=f"model of {self.game}", do=do)
        return np.asarray(given).reshape(shape)

    def _chosen(self, out: dict[str, Array], seat: SeatSpec, legal: Array | None, deterministic: bool) -> Array:
        if not deterministic:
            return self._policy(seat.action).explore(out, legal, self._rng, 0.0).action
        if seat.action.choices:
            return choose(seat.action, out["logits"], legal, self._rng).action
        mean = squashed(out["mean"], bounds_of(seat.action))
        return mean.reshape(len(mean), *seat.action.shape).astype(seat.action.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class Returns(games.Evaluation):
    """What a player earned in an evaluation. Wins, draws and losses are None in a game without opponents."""

    title: str = ""

    @property
    def quantiles(self) -> dict[str, float]:
        """Of the returns: "p00" (the least), "p05", "p25", "p50", "p75", "p95", "p100"."""
        return summary(self.returns).quantiles

    def plot(self, file: str | Path | None = None) -> "Figure":
        """The distribution as a figure, and as a .png, .svg or .pdf where a file is named."""
        if file is not None:
            check_format(Path(file), "plot(file)")
        figure = draw(self.returns, self.title)
        if file is not None:
            save_picture(figure, Path(file))
        return figure

    def __repr__(self) -> str:
        won = "" if self.wins is None else f", {self.wins} won, {self.draws} drawn, {self.losses} lost"
        return f"<{self.title}: {self.mean:.4g} ± {self.sd:.3g}{won}>"


@check_arguments
def load(name: str | Path, *, data: str | Path | None = None, seed: int = 0, seat: int = 0) -> LoadedModel:
    """The model called `name`: "champion:GAME", an id or the beginning of one, or the folder of an exported model.
    Where seats are of several kinds, each with a champion of its own, `seat` says whose.

    Champions and ids are those of the registry in ./spar.toml, or of the data folder `data`. `seed` decides what
    `predict(deterministic=False)` draws.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed}", where="sparring.load", do="Count seeds from 0")
    found = player_of(name, data)
    if isinstance(found.player, str):
        raise ConfigError(f"{name!r} is a script", where="sparring.load", do="Name a model; scripts act in `evaluate`")
    spec, player = spec_of(found.game), found.player
    if not 0 <= seat < len(spec.seats):
        do = f"Count from 0 to {len(spec.seats) - 1}" if len(spec.seats) > 1 else "Its only seat is 0"
        raise ConfigError(f"seat {seat}", where=f"game {found.game}", do=do)
    if isinstance(player, Lineup):
        one = player.seats[seat]
        if not isinstance(one, Model):
            wrong = f"seat {spec.seats[seat].name!r} of {found.game} has no champion yet"
            raise Missing(wrong, where="registry", do=f"Train one: `spar train {shlex.quote(found.game)}`")
        player = one
    return LoadedModel(player, spec, seed=seed)


@check_arguments
def evaluate(
    model: LoadedModel | str | Path,
    episodes: int | None = None,
    *,
    against: LoadedModel | str | Path | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    video: str | Path | None = None,
) -> Returns:
    """Let a model or script play 100 episodes, the model at its best, seats in turn, against another one (the script
    "random"). With `video` it plays one, or as many as asked for, and they are written into that .mp4 or .gif."""
    ours = player_of(model, data)
    if against is not None:
        check_has_others(ours.game, "against")
    rival = None if against is None else player_of(against, data, ours.game).player
    episodes = episodes if episodes is not None else 100 if video is None else 1
    film = None if video is None else Path(video)
    played = games.evaluate(ours.game, ours.player, episodes=episodes, seed=seed, against=rival, video=film)
    title = f"{ours.game}: {ours.name if ':' in ours.name else ours.name[:12]} in {episodes} episodes"
    return Returns(**{one.name: getattr(played, one.name) for one in fields(played)}, title=title)


def player_of(name: LoadedModel | str | Path, data: str | Path | None, game: str | None = None) -> Named:
    """The player behind an argument: a loaded model, an exported model's folder, or a name as on the command line."""
    if isinstance(name, LoadedModel):
        return Named(name.game, name.id, name.files)
    if isinstance(name, Path) or Path(name).is_dir():
        model = model_in(Path(name))
        return Named(model.card.game, model.id, model)
    with open_registry(settings(data).registry_url) as registry:
        return named(name, registry, game)


def settings(
    data: str | Path | None, config: str | Path | None = None, overrides: tuple[str, ...] = ()
) -> configs.Config:
    """spar.toml with overrides, as on the command line; ConfigError where the data folder is of another format."""
    said = (*overrides, *([] if data is None else [f"data={Path(data).absolute()}"]))
    found = configs.load(None if config is None else Path(config), said)
    configs.check_data_folder(Path(found.data))
    return replace(found, set_by={key: "program" if by == "--set" else by for key, by in found.set_by.items()})


def _columns(observation: Observation, seat: SeatSpec, frame_stack: int, game: str) -> tuple[Columns, bool]:
    """The observation as leaf name → [rows, *shape], and whether it was a batch."""
    given = observation if isinstance(observation, Mapping) else None
    if given is None and len(seat.observation) > 1:
        names = ", ".join(leaf.name.removeprefix("observation/") for leaf in seat.observation)
        raise ConfigError("the observation is one array", where=f"model of {game}", do=f"Give a mapping of {names}")
    columns, batched = {}, False
    for leaf in seat.observation:
        short = leaf.name.removeprefix("observation/")
        value = observation if given is None else given.get(leaf.name, given.get(short))
        if value is None:
            raise ConfigError(f"the observation has no {short!r}", where=f"model of {game}", do="Add it")
        shape = leaf.stacked(frame_stack)
        try:
            array = np.asarray(value)
        except ValueError:  # rows of several lengths, or (observation, info) as an environment's reset returns it
            do = f"Give {shape}, or [n, …] of it: of what reset() returns the first part"
            raise ConfigError(f"{short} is no array", where=f"model of {game}", do=do) from None
        if leaf.kind == "image" and array.shape[-3:] != shape and array.shape[-3:] == (*shape[1:], shape[0]):
            array = np.moveaxis(array, -1, -3)  # Gymnasium's images have their channels last
        batched = array.ndim > len(shape)
        if array.shape[int(batched) :] != shape:
            do = f"Give {shape}, or [n, …] of it"
            raise ConfigError(f"{short} has shape {array.shape}", where=f"model of {game}", do=do)
        try:
            columns[leaf.name] = np.ascontiguousarray(array if batched else array[None], leaf.dtype)
        except (TypeError, ValueError):
            raise ConfigError(f"{short} is no {leaf.dtype}", where=f"model of {game}", do="Give numbers") from None
    return columns, batched
