"""An actor: n games of one kind, played at once by the newest weights, and by opponents in the other seats.

A stream is one seat of one game; stream = seat · n + game. At each decision of a stream its step is opened; what its
player earns from then on, also while others move, belongs to that step; at its next decision or its end the step is
closed and handed on. Only what the learning policy did is handed on. There is no loop over games.

Where the game's spec has a frame_stack the policy sees the last frames of its stream at each decision. Where the
network has a memory each stream has a state, whichever network plays it: zeros when its game begins, then what the last
decision left.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from sparring.acting.explorer import Explorer
from sparring.acting.opponents import FIRST_SCRIPT, SELF, Opponents
from sparring.acting.rollout import Rollout, new_columns, rollout_layout
from sparring.errors import TrainingStopped
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import RUNNING, TRUNCATED, Columns, Game, SearchableGame, View
from sparring.nets.forward import Forward
from sparring.nets.policies import Policy
from sparring.nets.shapes import STATE, initial_state
from sparring.nets.tree_search import POLICY_TARGET
from sparring.nets.user_code import open_policy
from sparring.replay.steps import Batch, Steps
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, rng_state, set_rng_state

if TYPE_CHECKING:
    from sparring.nets.batch_search import BatchSearch


@dataclass(slots=True)
class _Open:
    """The step that each stream has begun; rows of streams that have none hold nothing of meaning."""

    begun: Array  # bool [streams]
    observation: Columns  # in stacks
    legal: Array | None
    action: Array
    logp: Array
    value: Array | None  # None: the network has no value head
    reward: Array
    state: Array | None  # with which it was decided; None: the network has no memory
    policy_target: Array | None = None  # what a search made of the policy; None: nothing is searched


@dataclass(frozen=True, slots=True)
class Episodes:
    """Games that ended: what the learning policy earned in each seat that it held."""

    returns: Array  # float32 [k]
    against_others: Array  # bool [k]: the other seats were a past self's or a script's


NO_EPISODES = Episodes(np.zeros(0, np.float32), np.zeros(0, bool))


class Actor:
    """Plays without end: a game that is over is reset."""

    def __init__(  # noqa: PLR0913  (what plays, and how)
        self,
        game: Game,
        forward: Forward,
        policy: str | Policy,
        rng: Generator,
        opponents: Opponents,
        reward_clip: float = 0.0,
        repeat: bool = False,
        search: "BatchSearch | None" = None,
    ) -> None:
        """With a `search` the learning policy looks ahead before it decides; opponents do not."""
        self._search = search
        self._game, self._forward, self._rng, self._opponents = game, forward, rng, opponents
        self._seat, seats = game.spec.seats[0], len(game.spec.seats)
        self._policy = open_policy(policy, self._seat.action) if isinstance(policy, str) else policy
        self._reward_clip = reward_clip  # 0: rewards are handed on as they are
        self._seats, self.streams = seats, seats * game.n
        self._teams = np.array([seat.team for seat in game.spec.seats])
        self._rows = np.arange(self.streams)
        self._stacks = FrameStacks(self._seat, game.spec.frame_stack, self.streams)
        self._who = np.full(self.streams, SELF, np.int64)  # who plays each stream
        self._return = np.zeros(self.streams, np.float32)
        self._state = None if forward.spec.memory is None else initial_state(forward.spec, self.streams)
        self._explorer = Explorer(self._policy, game.spec, self.streams, rng, repeat=repeat)
        self._version = 0
        self.env_steps = 0  # ticks of all games together
        self.episodes = 0
        self._ended: list[tuple[Array, Array]] = []
        self._view = self._begin(np.ones(game.n, bool))
        self.masks = self._view.legal[0] is not None
        legal = self._legal(self._view)
        self._lent = False  # the last steps handed on share their arrays with what is open
        self._open = _Open(
            begun=np.zeros(self.streams, bool),
            observation={leaf: column.copy() for leaf, column in self._stacks.peek(self._seen(self._view)).items()},
            legal=None if legal is None else legal.copy(),
            action=np.zeros((self.streams, *self._seat.action.shape), self._seat.action.dtype),
            logp=np.zeros(self.streams, np.float32),
            value=np.zeros(self.streams, np.float32) if _values(forward) else None,
            reward=np.zeros(self.streams, np.float32),
            state=None if self._state is None else self._state.copy(),
            policy_target=None if search is None else np.zeros((self.streams, self._seat.action.masks), np.float32),
        )

    def use(self, forward: Forward, version: int = 0) -> None:
        """Play with these weights, which the learner had after `version` updates, from the next decision on."""
        self._forward, self._version = forward, version

    def step(self, epsilon: float | Array = 0.0) -> Steps:
        """Every game goes on by one decision; the steps that this closed, in single frames. ε: one, or [streams]."""
        return self.in_frames(self._step(epsilon))

    def in_frames(self, steps: Steps) -> Steps:
        """Steps that `take` gave with what was seen in single frames, as replay keeps them."""
        newest = self._stacks.newest
        if self._stacks.frames == 1:
            return steps
        seen, final = newest(dict(steps.observation)), newest(dict(steps.final_observation))
        return replace(steps, observation=seen, final_observation=final)

    def rollout(self, ticks: int, columns: Mapping[str, Array] | None = None, epsilon: float | Array = 0.0) -> Batch:
        """Trajectories of `ticks` decisions of every game, written into `columns` where they are given."""
        rollout = self.open_rollout(ticks, columns)
        for _ in range(ticks):
            self.write(rollout, self._step(epsilon))
        return self.close_rollout(rollout)

    # In parts, for games that others step: decide, then take what they show.

    def open_rollout(self, ticks: int, columns: Mapping[str, Array] | None) -> Rollout:
        """Where `write` puts steps."""
        if columns is not None:
            return Rollout(self._seat, columns, used=True)
        layout = rollout_layout(
            self._seat,
            ticks,
            self.streams,
            masks=self.masks,
            frame_stack=self._stacks.frames,
            network=self._forward.spec,
            searches=self._search is not None,
        )
        return Rollout(self._seat, new_columns(layout), used=False)

    def write(self, rollout: Rollout, steps: Steps) -> None:
        """Steps that `take` gave."""
        if len(steps):
            rollout.write(steps, self._truncation_value(steps))

    def close_rollout(self, rollout: Rollout) -> Batch:
        """What was written, with what each stream sees next."""
        begun, then = self._open.begun, self._open.observation
        now = self._stacks.peek(self._seen(self._view))
        # A stream that waits for others has already decided: what it saw then follows its last closed step.
        seen = {leaf: np.where(_like(begun, now[leaf]), then[leaf], now[leaf]) for leaf in now}
        if self._state is None or self._open.state is None:
            return rollout.batch(seen)
        return rollout.batch(seen, np.where(begun[:, None], self._open.state, self._state))

    def take(self, view: View, over: Array | None = None) -> Steps:
        """The steps that `view` closes, with what was seen in stacks; a game that is over is reset. `over` (bool [n])
        is given where games have more seats than `view` shows."""
        steps = self._close(view)
        if over is None:
            over = view.over if self._seats > 1 else _by_stream(view.ending) != RUNNING
        if np.count_nonzero(over):
            self._note(over, view.outcome)
            view = self._begin(over)
        self._view = view
        return steps

    def break_off(self, which: Array) -> tuple[Array, Array]:
        """Forget those games (bool [n]) and begin others: their streams, and what those thought they were worth."""
        streams = np.tile(which, self._seats)
        self._open.begun = self._open.begun & ~streams
        self._return[streams] = 0.0
        self._view = self._begin(which)
        value = np.zeros(self.streams, np.float32) if self._open.value is None else self._open.value
        return np.flatnonzero(streams), value[streams]

    def ended(self) -> Episodes:
        """The games that ended since this was last asked."""
        ended, self._ended = self._ended, []
        if not ended:
            return NO_EPISODES
        return Episodes(np.concatenate([one for one, _ in ended]), np.concatenate([past for _, past in ended]))

    def save(self) -> Tree:
        """Everything but the weights and the opponents. Games that cannot be saved, or whose opponents are not the
        same then, are reset when this is loaded."""
        opened, view = self._open, self._view
        return {
            "rng": rng_state(self._rng),
            "game": self._game.save() if self._game.spec.resimulates else None,
            "who": self._who,
            "return": self._return,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "view": {name: getattr(view, name) for name in _VIEW},
            "open": {name: getattr(opened, name) for name in _OPEN},
            "stacks": self._stacks.save(),
            "state": self._state,
            "held": self._explorer.save(),
        }

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        set_rng_state(self._rng, state["rng"])
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
        if state["game"] is None or not self._opponents.lasting:
            return
        self._game.restore(state["game"])
        self._who, self._return = state["who"].copy(), state["return"].copy()
        saved = state["view"]
        self._view = View(**{**saved, "observation": tuple(saved["observation"]), "legal": tuple(saved["legal"])})
        held: Tree = {name: _copied(value) for name, value in state["open"].items()}
        self._open, self._lent = _Open(**held), False
        self._state = None if state["state"] is None else state["state"].copy()
        self._explorer.load(state["held"])
        if self._stacks.frames > 1:
            self._stacks.load(state["stacks"])

    def _step(self, epsilon: float | Array) -> Steps:
        """Like `step`, with what was seen in stacks."""
        n, action = self._game.n, self.decide(epsilon)
        view = self._game.step([action[seat * n : (seat + 1) * n] for seat in range(self._seats)])
        self.env_steps += n
        return self.take(view)

    def decide(self, epsilon: float | Array) -> Array:
        """Open a step for each stream that is to act; what they do, [streams, …]."""
        acting = _by_stream(self._view.to_act)
        shown, legal = self._seen(self._view), self._legal(self._view)
        alone = not self._opponents.any and self._search is None
        if alone and np.count_nonzero(acting) == self.streams:  # far cheaper than all()
            seen, before = self._stacks.push(shown), self._state
            out = self._forward(seen, before)
            choice = self._explorer.choose_all(out, legal, epsilon)
            zeros, self._state = np.zeros(self.streams, np.float32), out.get(STATE)
            self._open = _Open(acting, seen, legal, choice.action, choice.logp, out.get("value"), zeros, before)
            return choice.action
        if self._lent:
            self._open, self._lent = _Open(**{name: _copied(getattr(self._open, name)) for name in _OPEN}), False
        rows, opened = np.flatnonzero(acting), self._open
        opened.begun = opened.begun | acting
        opened.reward[rows] = 0.0
        seen = self._stacks.push({leaf: column[rows] for leaf, column in shown.items()}, rows)
        for leaf, column in seen.items():
            opened.observation[leaf][rows] = column
        if legal is not None and opened.legal is not None:
            opened.legal[rows] = legal[rows]
        who = self._who[rows]
        for player in np.unique(who) if self._opponents.any else (SELF,):
            places = np.flatnonzero(who == player)
            mine = rows[places]
            if player <= FIRST_SCRIPT:
                self._follow_script(FIRST_SCRIPT - player, mine, shown, legal)
                continue
            forward = self._forward if player == SELF else self._opponents.forwards[player]
            part = {leaf: column[places] for leaf, column in seen.items()}
            self._choose_for(mine, forward, part, epsilon, searches=player == SELF and self._search is not None)
        return opened.action

    def _choose_for(
        self, rows: Array, forward: Forward, seen: Columns, epsilon: float | Array, *, searches: bool
    ) -> None:
        """Write what the network chooses in those streams into their open steps."""
        opened = self._open
        legal = None if opened.legal is None else opened.legal[rows]
        state = None if self._state is None else self._state[rows]
        rate = epsilon[rows] if isinstance(epsilon, np.ndarray) else epsilon
        out = forward(seen, state)
        if searches:
            out = self._searched(rows, out, legal, forward)
        choice = self._explorer.choose(out, legal, rate)
        opened.action[rows], opened.logp[rows] = choice.action, choice.logp
        if opened.value is not None:
            opened.value[rows] = out.get("value")
        if self._state is not None and opened.state is not None:
            opened.state[rows], self._state[rows] = state, out.get(STATE)

    def _searched(self, rows: Array, out: Columns, legal: Array | None, forward: Forward) -> Columns:
        """What the network says of those streams' positions once it has looked ahead."""
        assert self._search is not None
        assert isinstance(self._game, SearchableGame)
        seats, games = np.divmod(rows, self._game.n)
        states = self._game.save_rows()
        mask = np.ones((len(rows), self._seat.action.masks), bool) if legal is None else legal
        better = self._search.search([states[game] for game in games], seats, out, mask, forward, self._rng)
        assert self._open.policy_target is not None
        self._open.policy_target[rows] = better[POLICY_TARGET]
        return better

    def _follow_script(self, place: int, rows: Array, shown: Columns, legal: Array | None) -> None:
        """What a script does in those streams. Nothing of it is handed on, so it needs no probability."""
        for seat in range(self._seats):
            mine = rows[rows // self._game.n == seat]
            if len(mine):
                part = {leaf: column[mine] for leaf, column in shown.items()}
                allowed = None if legal is None else legal[mine]
                self._open.action[mine] = self._opponents.scripts[place].act(seat, part, allowed, self._rng)

    def _close(self, view: View) -> Steps:
        """The steps that `view` completes: those of streams that are to act again, or have ended."""
        opened, earned, ending = self._open, _by_stream(view.reward), _by_stream(view.ending)
        if not math.isfinite(earned @ earned) and not np.isfinite(earned).all():
            raise self._no_number(earned)
        opened.reward = opened.reward + earned
        self._return += earned
        ended = ending != RUNNING
        closing = opened.begun & (_by_stream(view.to_act) | ended)
        opened.begun = opened.begun & ~closing
        if self._opponents.any:
            closing &= self._who == SELF
        if np.count_nonzero(closing) == self.streams:
            self._lent = True
            return self._handed(view, slice(None), self._rows, ending, np.flatnonzero(ended))
        rows = np.flatnonzero(closing)
        return self._handed(view, rows, rows, ending[rows], np.flatnonzero(ended[rows]))

    def _handed(self, view: View, picked: Array | slice, rows: Array, ending: Array, final: Array) -> Steps:
        """The open steps of the streams `rows`; `picked` is the same, or a slice of them all, which copies nothing."""
        opened, last, legal, state = self._open, {}, None, None
        if len(final):
            streams = rows[final]
            last = {leaf: column[streams] for leaf, column in self._seen(view).items()}
            legal, state = (_rows_of(column, streams) for column in (self._legal(view), self._state))
        reward = opened.reward[picked]
        if self._reward_clip > 0:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        return Steps(
            stream=rows,
            observation={leaf: column[picked] for leaf, column in opened.observation.items()},
            action=opened.action[picked],
            reward=reward,
            ending=ending,
            legal=_rows_of(opened.legal, picked),
            behaviour_logp=opened.logp[picked],
            value=_rows_of(opened.value, picked),
            final=final,
            final_observation=self._stacks.peek(last, rows[final]),
            final_legal=legal,
            final_state=state,
            state=_rows_of(opened.state, picked),
            policy_target=_rows_of(opened.policy_target, picked),
            version=self._version,
        )

    def _no_number(self, earned: Array) -> TrainingStopped:
        stream = int(np.flatnonzero(~np.isfinite(earned))[0])
        seat, row = divmod(stream, self._game.n)
        return TrainingStopped(
            f"it gave seat {self._game.spec.seats[seat].name!r} the reward {earned[stream]} at tick "
            f"{int(self._view.tick[row])} of an episode",
            where=f"game {self._game.spec.id}",
            do="Correct the game: a reward is a finite number",
        )

    def _truncation_value(self, steps: Steps) -> Array | None:
        cut = steps.ending == TRUNCATED
        if not np.count_nonzero(cut) or self._open.value is None:
            return None
        value = np.zeros(len(steps), np.float32)
        value[steps.final] = self._forward(dict(steps.final_observation), steps.final_state)["value"]
        return np.asarray(value * cut)

    def _note(self, over: Array, outcome: Array) -> None:
        """Remember what the learning policy earned in games that are over, and against whom."""
        seats = np.tile(over, self._seats)
        mine = self._who == SELF
        by_seat = mine.reshape(self._seats, -1)
        alone = by_seat.all(axis=0)
        if self._opponents.any and (met := over & ~alone).any():
            rival = np.where(by_seat, np.iinfo(np.int64).min, self._who.reshape(self._seats, -1)).max(axis=0)
            own = np.where(by_seat.T, outcome, -np.inf).max(axis=1)
            best = np.where(by_seat.T, -np.inf, outcome).max(axis=1)
            self._opponents.note(rival[met], np.sign(own - best)[met] / 2 + 0.5)
        self._ended.append((self._return[seats & mine].copy(), np.tile(~alone, self._seats)[seats & mine]))
        self.episodes += int(over.sum())
        self._return[seats] = 0.0

    def _begin(self, which: Array) -> View:
        """Start those games, and draw who plays them."""
        n = self._game.n
        streams = np.tile(which, self._seats)
        self._stacks.begin(streams)
        self._explorer.begin(streams)
        if self._state is not None:
            self._state[streams] = 0.0
        seeds = self._rng.integers(0, 2**64, n, dtype=np.uint64)
        if self._seats > 1 and self._opponents.any:
            rival = self._opponents.draw(n, self._rng)
            own_team = self._teams[self._rng.integers(0, self._seats, n)]
            drawn = np.where(self._teams[:, None] == own_team, SELF, rival).reshape(-1)
            self._who = self._opponents.playing = np.where(streams, drawn, self._who)
        return self._game.reset(seeds, which)

    def _seen(self, view: View) -> Columns:
        return view.observation[0] if self._seats == 1 else _side_by_side(view.observation)

    def _legal(self, view: View) -> Array | None:
        if self._seats == 1:
            return view.legal[0]
        masks = [mask for mask in view.legal if mask is not None]
        if len(masks) < self._seats:
            return None
        joined: Array = np.concatenate(masks)
        return joined


_OPEN = tuple(item.name for item in fields(_Open))
_VIEW = ("to_act", "observation", "legal", "reward", "ending", "outcome", "tick")


def _values(forward: Forward) -> bool:
    return any(head.name == "value" for head in forward.spec.heads)


# Columns of games and seats as columns of streams.


def _by_stream(column: Array) -> Array:
    """[n, seats] as [streams]."""
    return column.T.reshape(-1)


def _side_by_side(by_seat: tuple[Columns, ...]) -> Columns:
    """What every seat sees, as streams."""
    return {leaf: np.concatenate([columns[leaf] for columns in by_seat]) for leaf in by_seat[0]}


def _like(mask: Array, column: Array) -> Array:
    """A mask [streams] that spreads over the column [streams, …]."""
    return mask.reshape(-1, *(1,) * (column.ndim - 1))


def _rows_of(column: Array | None, rows: Array | slice) -> Array | None:
    """Those rows, where there is a column."""
    return None if column is None else column[rows]


def _copied(value: Tree) -> Tree:
    """A column, columns by name, or nothing."""
    if value is None:
        return None
    return {name: column.copy() for name, column in value.items()} if isinstance(value, dict) else value.copy()
