"""`atari:<Game>`: a game of the Atari 2600, such as atari:Pong or atari:Breakout(sticky=0.25,actions=full).

n consoles run in ALE's own threads. One tick is four frames of the console, of which the last two are joined by
their brighter pixels, in grey, 84 x 84. A single picture travels; spec.frame_stack says how many a player sees.
Rewards are the game's points, never clipped (docs/decisions/0015-atari-by-ale-vectors.md).
"""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing
from sparring.games.game_state import (
    REWARD_BOUND,
    SEEDS,
    OneSeatGame,
    did_you_mean,
    id_with_options,
    library,
    name_and_options,
)
from sparring.games.protocol import RUNNING, Actions, Game, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, checked, discrete
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

SCREEN = "observation/screen"
SIDE = 84  # pixels
FRAMES_A_TICK = 4
MOST_TICKS = 108_000 // FRAMES_A_TICK  # half an hour at the console
NOOPS = 30  # at most this many frames pass before a player's first decision, drawn by the seed


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may stand in parentheses behind the game's name. Machado et al. (2018) use sticky=0.25."""

    sticky: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # how likely the last action is repeated instead
    actions: Literal["minimal", "full"] = "minimal"  # those that do something in this game, or "full": all 18
    lives: Literal["all", "one"] = "all"  # or "one": the game is over with the first life lost

    def __str__(self) -> str:
        """Those that are set, as they stand in an id; one choice has one id."""
        shown = [f"sticky={self.sticky:g}"] if self.sticky else []
        shown += ["actions=full"] if self.actions == "full" else []
        shown += ["lives=one"] if self.lives == "one" else []
        return f"({','.join(shown)})" if shown else ""


def open_game(text: str, n: int) -> Game:
    """n games of that name, with those options; Missing or ConfigError where there are none such."""
    where = f"game 'atari:{text}'"
    name, options = name_and_options(text, where)
    return Atari(_rom(name), name, n, _options(options, where))


class Atari(OneSeatGame):
    """n consoles with one cartridge."""

    def __init__(self, rom: str, name: str, n: int, options: Options, most_ticks: int = MOST_TICKS) -> None:
        super().__init__(n)
        self._consoles = _vector_class()(
            rom,
            n,
            stack_num=1,
            img_height=SIDE,
            img_width=SIDE,
            frameskip=FRAMES_A_TICK,
            noop_max=NOOPS,
            max_num_frames_per_episode=most_ticks * FRAMES_A_TICK,
            repeat_action_probability=options.sticky,
            full_action_space=options.actions == "full",
            episodic_life=options.lives == "one",
            reward_clipping=False,
        )
        seat = SeatSpec(
            name="player",
            observation=(Leaf(name=SCREEN, kind="image", shape=(SIDE, SIDE), dtype="uint8", low=0.0, high=255.0),),
            action=discrete(int(self._consoles.single_action_space.n)),
            reward_bounds=(-REWARD_BOUND, REWARD_BOUND),
        )
        game_id = GameId(f"atari:{name}{options}")
        spec = GameSpec(id=game_id, turns="simultaneous", seats=(seat,), max_ticks=most_ticks, frame_stack=4)
        self.spec = checked(spec, f"game {game_id!r}")
        self._reset_once = False  # ALE wants all consoles reset together once, before any alone
        self._screen = np.zeros((n, SIDE, SIDE), np.uint8)  # of the last view

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`, each from its own seed."""
        which = np.asarray(which, bool)
        if which.any():
            seeds = (np.asarray(seeds, np.uint64) % SEEDS).astype(np.int64)
            if self._reset_once:
                shown, _ = self._consoles.reset(seed=seeds[which], options={"reset_mask": which})
            else:
                shown, _ = self._consoles.reset(seed=seeds)
                self._reset_once = True
            self._start(which)
            self._show(which, shown)
        return self._view({SCREEN: self._screen.copy()})

    def step(self, actions: Actions) -> View:
        """Every running game goes on by four frames."""
        running = self._ending == RUNNING
        moves = self._checked_actions(0, actions[0], running)
        if not running.any():
            return self._view({SCREEN: self._screen.copy()})
        shown, points, terminated, truncated, _ = self._consoles.step(moves)
        # ALE restarts a finished game in the step after its end. What such a console plays is not shown, and the
        # reset from a seed keeps nothing of it.
        reward = self._advance(running, points, terminated, truncated)
        self._show(running, shown)
        return self._view({SCREEN: self._screen.copy()}, reward)

    def _show(self, which: Array, shown: Array) -> None:
        """Take the screens of `which`; the other games keep what they showed last."""
        screen = shown[:, 0]
        self._screen = screen if which.all() else np.where(which[:, None, None], screen, self._screen)


def _vector_class() -> Any:
    ale_py = library("ale_py", "ale-py", "games atari:…")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # its greeting would stand among our own lines
    return library("ale_py.vector_env", "ale-py", "games atari:…").AtariVectorEnv


def _rom(name: str) -> str:
    """The cartridge of that name, as ALE calls it."""
    _vector_class()
    from ale_py.registration import rom_id_to_name
    from ale_py.roms import get_all_rom_ids

    roms = {rom_id_to_name(rom): rom for rom in get_all_rom_ids()}
    if name in roms:
        return roms[name]
    do = did_you_mean(name.title(), roms, "Use one of " + ", ".join(sorted(roms)), "atari:")
    raise Missing("there is no such game", where=f"game 'atari:{name}'", do=do)


def _options(given: dict[str, Any], where: str) -> Options:
    try:
        return msgspec.convert(given, Options)
    except msgspec.ValidationError:
        do = "Choose from sticky=0.25 (from 0 to below 1), actions=full and lives=one"
        raise ConfigError(f"options {id_with_options('', given)}", where=where, do=do) from None
