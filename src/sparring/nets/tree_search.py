"""Monte Carlo tree search over a model: PUCT (Silver et al. 2018), many leaves in one run of the model.

Each simulation descends from the root by Q + c · P · √N / (1 + n) to a move that was not tried yet. The model values
the position behind it and gives the moves there their prior probabilities; what was earned on the way and that value
are then averaged into every move of the path, with the sign of who makes it. Several descents end in one run of the
model: a move that waits for its value counts as lost meanwhile (virtual loss), so that the next descent goes
elsewhere. An end of the game is worth what the game says, and the model is not asked. A game that tells its
`move_outcomes` settles moves of every position two plies ahead.

For games that say that they are `searchable` (games/protocol.py), of one team, or of two whose gain is the other's
loss. Q is scaled to 0..1 by the rewards that two teams play for, and by the values seen in this search. What two teams
can win at the end is the most that a position is worth, until a move earns something before the end.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from sparring.errors import Refused
from sparring.games.protocol import TERMINATED, Columns, SearchableGame, View
from sparring.games.spec import GameSpec
from sparring.nets.policies import log_softmax, masked
from sparring.wire.chunk import Array
from sparring.wire.model import Card

BATCH_LEAVES = 64  # in one run of the model at most; fewer while the tree is small
TEMPERATURE = 0.1  # of priors from values, in units of half the range of rewards
POLICY_TEMPERATURE = 1.4  # of priors from a policy, which is surer of its first move than a search should be
MAX_NODES = 200_000  # of one search: some 200 MB
POLICY_TARGET = "policy_target"  # among what a search of many games gives: the policy that it found
TIE = 1e-3  # of a visit: by so much at most does the prior decide between moves with equal visits


class SearchSpec(msgspec.Struct, frozen=True):
    """How actors look ahead before each decision, in many games at once (nets/batch_search.py, which is compiled)."""

    simulations: int
    discount: float  # between two decisions of the same seat
    root_noise: float  # its share in the root's prior
    random_moves: float = 0.0  # share of moves that are played by chance; what is learned has none of it
    value_scale: float = 0.1  # c_scale


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found out about one position."""

    visits: Array  # float32 [choices]: how often each move was tried
    scores: Array  # float32 [choices]: log of those shares, with a trace of the model's own prior; -inf: not legal
    value: float  # for the seat to move
    simulations: int


class SearchModel:
    """A model as the search asks it: priors, and values in the game's own units."""

    def __init__(self, card: Card, game: GameSpec, run: Callable[[Columns], Mapping[str, Array]]) -> None:
        """`run` gives the network's outputs for rows of what is seen; "legal" is among their columns."""
        if card.network.memory is not None:
            wrong, do = "a model with memory does not see a position at once", "Act without search_ms"
            raise Refused(wrong, where=f"model {card.id[:12]}", do=do, field="search_ms")
        self._run, settings = run, card.lineage.config
        self._greedy, self._scale = card.policy == "greedy", float(settings.get("reward_scale") or 1.0)
        low, high = game.seats[0].reward_bounds
        self._temperature = TEMPERATURE * ((high - low) / 2 or 1.0)
        # A model learns from its own seat's decisions: between two of them every seat moves once.
        self.discount = float(settings.get("discount", 1.0)) ** (1 / len(game.seats))

    def estimates(self, columns: Columns, legal: Array) -> tuple[Array, Array]:
        """Priors [n, choices] and values [n]. Of a model of values (DQN) a softmax of them, and the best one; without
        a value head a position is worth 0."""
        out = self._run({**columns, "legal": legal})
        scores = masked(np.asarray(out["logits"], np.float32), legal)
        if self._greedy:
            scores = scores / self._scale
            priors, value = np.exp(log_softmax(scores / self._temperature)), scores.max(axis=1)
        else:
            priors = np.exp(log_softmax(scores / POLICY_TEMPERATURE))
            value = out["value"].reshape(-1) / self._scale if "value" in out else np.zeros(len(scores), np.float32)
        return priors, value


class _Even:
    """A model that knows nothing."""

    discount = 1.0

    def estimates(self, columns: Columns, legal: Array) -> tuple[Array, Array]:
        return (legal / legal.sum(axis=1, keepdims=True)).astype(np.float32), np.zeros(len(legal), np.float32)


class TreeSearch:
    """Searches one game, with any model of it. Safe to call from several threads."""

    def __init__(self, open_games: Callable[[int], object], spec: GameSpec) -> None:
        """`open_games` gives n games at once; Refused where they cannot be searched."""
        self.spec, self._open, self._where = spec, open_games, f"search in {spec.id}"
        if wrong := obstacle(open_games(1), spec):  # one: 64 consoles take seconds to open
            raise Refused(wrong, where=self._where, do="Act without search_ms", field="search_ms")
        self._most = spec.seats[0].reward_bounds[1] if spec.has_rivals else math.inf  # no position is worth more
        self._idle = [self._started(open_games(BATCH_LEAVES))]
        # Compiles now, so that the first search has its whole time.
        _Search(self._idle[0], _Even(), None, self._most).simulate(1)

    def row_of(self, seat: int, observation: Mapping[str, Array]) -> bytes:
        """The game's state, rebuilt from what the seat to move sees; Refused where that does not show all of it."""
        read = getattr(self._idle[0] if self._idle else self._open(1), "row_of", None)
        if read is None:
            wrong, do = "an observation does not show the whole state", "Give state=game.save() where you act"
            raise Refused(wrong, where=self._where, do=do, field="search_ms")
        row: bytes = read(seat, observation)
        return row

    def row_of_state(self, state: bytes) -> bytes:
        """The state that `save()` of one game gave; WireError where it is another game's, or of several."""
        one = self._started(self._open(1))
        one.restore(state)
        return one.save_rows()[0]

    def search(self, row: bytes, seat: int, model: SearchModel, deadline_s: float, legal: Array | None = None) -> Found:
        """Look ahead from `row`, where `seat` is to move (to what `legal` allows), until time.monotonic() is
        `deadline_s`; the model is asked at least once."""
        game = self._idle.pop() if self._idle else self._started(self._open(BATCH_LEAVES))
        try:
            game.restore_rows([row])
            search = _Search(game, model, legal, self._most)
            if search.seat != seat:
                wrong, do = f"seat {search.seat} is to move, not seat {seat}", "Name the seat that is to move"
                raise Refused(wrong, where=self._where, do=do, field="seat")
            found = search.grow(deadline_s)
            self._most = max(self._most, search.most)
            return found
        finally:
            self._idle.append(game)

    def _started(self, game: object) -> SearchableGame:
        assert isinstance(game, SearchableGame)
        game.reset(np.zeros(game.n, np.uint64), np.ones(game.n, bool))  # what it shows is known from now on
        return game


def obstacle(game: object, spec: GameSpec) -> str:
    """Why the game cannot be searched; nothing where it can."""
    if spec.turns == "simultaneous" and len(spec.seats) > 1:
        return "its seats move at the same time"
    if not isinstance(game, SearchableGame) or game.spec.hash != spec.hash or not spec.resimulates:
        return "its states cannot be saved and restored"
    if not game.searchable:
        return "it hides information or draws chance while it is played (its class does not say searchable = True)"
    if len({seat.team for seat in spec.seats}) > 2:
        return "it has more than two teams"
    if spec.has_rivals and any(sum(seat.reward_bounds) for seat in spec.seats):
        return "a team's gain is not the other's loss (reward_bounds are not [-x, x])"
    if spec.frame_stack > 1:
        return "its models see several frames at once"
    if any(seat.action.kind != "discrete" for seat in spec.seats):
        return "its actions are not a choice of one"
    if len(spec.kinds) > 1:
        return "its seats are of several kinds, and one model does not know what all of them would do"
    return ""


def deciding(spec: GameSpec, view: View, movers: Array) -> tuple[Array, Array, Columns]:
    """Of the first len(movers) rows: who is to move (where nobody is, who moved last), what is legal, and what they
    see."""
    k = len(movers)
    seats = np.where(view.to_act[:k].any(axis=1), view.to_act[:k].argmax(axis=1), movers)
    legal = np.ones((k, spec.seats[0].action.choices[0]), bool)
    columns = {name: array[:k].copy() for name, array in view.observation[0].items()}
    for seat in range(len(spec.seats)):
        rows = np.flatnonzero(seats == seat)
        mask = view.legal[seat]
        if mask is not None:
            legal[rows] = mask[rows]
        for name, array in view.observation[seat].items() if seat else ():
            columns[name][rows] = array[rows]
    return seats, legal, columns


def move_outcomes(game: SearchableGame, legal: Array) -> Array:
    """int8 [k, choices] of the first k rows: 1 where a legal move wins at once, -1 where the other team can win at once
    after it; 0 where the game does not tell."""
    tell = getattr(game, "move_outcomes", None)
    return np.asarray(tell()[: len(legal)] * legal) if tell else np.zeros(legal.shape, np.int8)


class _Search:
    """One search. The game's first row is the root."""

    def __init__(self, game: SearchableGame, model: SearchModel | _Even, allowed: Array | None, most: float) -> None:
        """`most`: no position is worth more, as far as is known."""
        from sparring.nets import search_tree  # imports numba, and compiles: with the first search

        self._trees, self._game, self._model, self._discount = search_tree, game, model, model.discount
        self._teams = np.array([seat.team for seat in game.spec.seats])
        low, high = game.spec.seats[0].reward_bounds if game.spec.has_rivals else (math.inf, -math.inf)
        self.most = most
        view = game.reset(np.zeros(game.n, np.uint64), np.zeros(game.n, bool))  # starts none: what it shows now
        if view.over[0]:
            raise Refused("the game is over", where=f"search in {game.spec.id}", do="Search where a seat decides")
        seats, legal, priors, values = self._asked(view, np.zeros(1, np.intp))
        if allowed is not None and not (legal := legal & np.asarray(allowed, bool)).any():
            wrong = "the moves that are allowed are not legal in this position"
            raise Refused(wrong, where=f"search in {game.spec.id}", do="Send its legal moves", field="legal")
        self._tree = search_tree.SearchTree.of(low, high, most).with_room(1, legal.shape[1])
        search_tree.add_node(self._tree, -1, int(seats[0]), 1.0, legal[0], priors[0], move_outcomes(game, legal)[0])
        self._rows, self._value, self.seat = [game.save_rows()[0]], float(values[0]), int(seats[0])

    def grow(self, deadline_s: float) -> Found:
        """Simulate until the deadline, which the last run of the model must not pass either, or until the best move
        is certain."""
        took_s, now_s, worth = 0.0, time.monotonic(), self._trees.settled_worth(self._tree, 0)
        while math.isnan(worth) and now_s + took_s < deadline_s and len(self._rows) < MAX_NODES:
            began_s = now_s
            self.simulate(min(BATCH_LEAVES, 4 + len(self._rows) // 8))
            now_s = time.monotonic()
            took_s = now_s - began_s
            worth = self._trees.settled_worth(self._tree, 0)
            if self._tree.moves[0] == 1:
                break
        tree = self._tree
        choices, actions = self._game.spec.seats[self.seat].action.choices[0], tree.root(tree.action)
        visits, scores = np.zeros(choices, np.float32), np.full(choices, -np.inf, np.float32)
        visits[actions] = tree.root(tree.visits)
        scores[actions] = np.log(self._shares())
        if math.isnan(worth):
            tried = int(visits.sum())
            worth = float(tree.root(tree.value).sum()) / tried if tried else self._value
        return Found(visits, scores, worth, int(tree.used[2]))

    def _shares(self) -> Array:
        """Of each move of the root: its visits, and so little of its prior that it decides between equal ones alone.
        A move that is certainly worse than another one has none."""
        tree = self._tree
        visits, prior, settled = (tree.root(of) for of in (tree.visits, tree.prior, tree.settled))
        shares, known = visits + TIE * prior + TIE**2, ~np.isnan(settled)
        best = settled[known].max(initial=-math.inf)
        shares[known & (settled >= self.most)] += visits.sum() + 1
        lost = known & (settled <= -self.most) & ~known.all()
        shares[(known & (settled < best)) | lost] = TIE**3
        return shares

    def simulate(self, most: int) -> None:
        """Make the moves that were found worth a try, each in a row of the game, and value what they lead to."""
        game, leaves = self._game, np.zeros(most, np.int32)
        if not (k := self._trees.collect(self._tree, leaves, self._discount)):
            return
        tree = self._tree = self._tree.with_room(k, k * game.spec.seats[0].action.choices[0])
        leaves = leaves[:k]
        parents, every = tree.node[leaves], np.arange(k)
        game.restore_rows([self._rows[node] for node in parents.tolist()])
        movers, moves = tree.seat[parents], np.zeros((len(self._teams), game.n), np.int32)
        moves[movers, every] = tree.action[leaves]
        view = game.step(list(moves))
        seats, legal, priors, values = self._asked(view, movers)
        signs = np.where(self._teams[movers] == self._teams[seats], 1.0, -1.0)
        over, ended = view.over[:k], (view.ending[:k] == TERMINATED).all(axis=1)  # ended: not cut short
        rows = game.save_rows()
        self._rows += [rows[row] for row in np.flatnonzero(~over).tolist()]
        outcomes, rewards = move_outcomes(game, legal), view.reward[every, movers]
        if rewards[~over].any():  # so a position may be worth any sum
            self.most = tree.bounds[2] = math.inf
        behind = self._trees.Reached(seats, signs, legal, priors, outcomes, values, rewards, over, ended)
        self._trees.hang(tree, leaves, behind, self._discount)

    def _asked(self, view: View, movers: Array) -> tuple[Array, Array, Array, Array]:
        """Of the first rows: who is to move (where nobody is, who moved last), what is legal, priors and values."""
        seats, legal, columns = deciding(self._game.spec, view, movers)
        priors, values = self._model.estimates(columns, legal)
        return seats, legal, priors, np.clip(values, -self.most, self.most)
