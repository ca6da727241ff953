"""Monte Carlo tree search over a model: PUCT (Silver et al. 2018), many leaves in one run of the model.

Each simulation descends from the root by Q + c · P · √N / (1 + n) to a move that was not tried yet. The model values
the position behind it and gives the moves there their prior probabilities; what was earned on the way and that value
are then averaged into every move of the path, with the sign of who makes it. Several descents end in one run of the
model: a move that waits for its value counts as lost meanwhile (virtual loss), so that the next descent goes
elsewhere. An end of the game is worth what the game says, and the model is not asked.

For games that say that they are `searchable` (games/protocol.py), of one team, or of two whose gain is the other's
loss. Q is scaled to 0..1 by the rewards that two teams play for, else by the values seen in this search.
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

BATCH_LEAVES = 32  # in one run of the model at most; fewer while the tree is small
EXPLORATION = 1.25  # c
UNTRIED = 0.1  # a move that was not tried counts as so much worse than its position
TEMPERATURE = 0.1  # of priors from values, in units of half the range of rewards
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
        rivals = game.has_rivals
        self._bounds = (low, high) if rivals else (-math.inf, math.inf)
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
            priors = np.exp(log_softmax(scores))
            value = out["value"].reshape(-1) / self._scale if "value" in out else np.zeros(len(scores), np.float32)
        return priors, np.clip(value, *self._bounds)


class TreeSearch:
    """Searches one game, with any model of it. Safe to call from several threads."""

    def __init__(self, open_games: Callable[[int], object], spec: GameSpec) -> None:
        """`open_games` gives n games at once; Refused where they cannot be searched."""
        game = open_games(BATCH_LEAVES)
        self.spec, self._open, self._where = spec, open_games, f"search in {spec.id}"
        if wrong := obstacle(game, spec):
            raise Refused(wrong, where=self._where, do="Act without search_ms", field="search_ms")
        self._idle = [self._started(game)]

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
            tree = _Tree(game, model, legal)
            if tree.root.seat != seat:
                wrong = f"it is not seat {seat} that is to move"
                raise Refused(wrong, where=self._where, do="Search where a seat decides", field="seat")
            return tree.grow(deadline_s)
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


class _Node:
    """One position: what is known of every legal move there, each list in the order of `actions`."""

    __slots__ = (
        *("actions", "children", "count", "pending", "prior", "reward", "row", "seat", "settled", "sign"),
        *("value", "visits"),
    )

    def __init__(self, row: bytes, seat: int, sign: float, legal: Array, prior: Array) -> None:
        self.row, self.seat, self.sign = row, seat, sign  # sign: -1 where the other team made the move that led here
        self.actions: list[int] = np.flatnonzero(legal).tolist()
        self.prior: list[float] = prior[self.actions].tolist()
        moves = len(self.actions)
        self.children: list[_Node | bool | None] = [None] * moves  # None: not tried; True: its value is waited for
        self.visits, self.pending, self.count = [0] * moves, [0] * moves, 0  # count: the sum of both
        self.value, self.reward = [0.0] * moves, [0.0] * moves  # sums; and what the move itself earns
        self.settled: list[float | None] = [None] * moves  # what the move is worth, where every way on was seen

    def best(self, low: float, span: float) -> int:
        """The move to try next."""
        visits, pending, value, settled = self.visits, self.pending, self.value, self.settled
        known = self.count - sum(pending)
        untried = max((sum(value) / known - low) / span - UNTRIED, 0.0) if known else 0.5
        rate = EXPLORATION * math.sqrt(self.count + 1)
        best, highest = 0, -math.inf
        for move, prior in enumerate(self.prior):
            tried, waits, exact = visits[move], pending[move], settled[move]
            if exact is not None:
                score = (exact - low) / span  # nothing more to explore
            else:
                score = (value[move] / tried - low) / span if tried else untried
                if waits:
                    score *= tried / (tried + waits)
                score += rate * prior / (1 + tried + waits)
            if score > highest:
                best, highest = move, score
        return best

    def worth(self, most: float) -> float | None:
        """What the position is worth for who is to move, if that is certain: a move earns all that can be won, or
        every way on was seen."""
        known = [exact for exact in self.settled if exact is not None]
        best = max(known, default=-math.inf)
        return best if best >= most or len(known) == len(self.settled) else None


_Path = list[tuple[_Node, int]]


class _Tree:
    """One search. The game's first row is the root."""

    def __init__(self, game: SearchableGame, model: SearchModel, allowed: Array | None) -> None:
        self._game, self._model, self._discount = game, model, model.discount
        self._teams = [seat.team for seat in game.spec.seats]
        rivals = len(set(self._teams)) > 1
        self._low, self._high = game.spec.seats[0].reward_bounds if rivals else (math.inf, -math.inf)
        self._most = self._high if rivals else math.inf  # no position is worth more
        view = game.reset(np.zeros(game.n, np.uint64), np.zeros(game.n, bool))  # starts none: what it shows now
        if view.over[0]:
            raise Refused("the game is over", where=f"search in {game.spec.id}", do="Search where a seat decides")
        seats, legal, priors, values = self._asked(view, np.zeros(1, np.intp))
        if allowed is not None and not (legal := legal & np.asarray(allowed, bool)).any():
            wrong = "the moves that are allowed are not legal in this position"
            raise Refused(wrong, where=f"search in {game.spec.id}", do="Send its legal moves", field="legal")
        self.root = _Node(game.save_rows()[0], int(seats[0]), 1.0, legal[0], priors[0])
        self._value, self._nodes, self._simulations = float(values[0]), 1, 0

    def grow(self, deadline_s: float) -> Found:
        """Simulate until the deadline, which the last run of the model must not pass either, or until the best move
        is certain."""
        root, took_s, now_s = self.root, 0.0, time.monotonic()
        while now_s + took_s < deadline_s and self._nodes < MAX_NODES and len(root.actions) > 1:
            began_s = now_s
            self._simulate(min(BATCH_LEAVES, 4 + self._nodes // 4))
            now_s = time.monotonic()
            took_s = now_s - began_s
            if root.worth(self._most) is not None:
                break
        choices = self._game.spec.seats[root.seat].action.choices[0]
        visits, scores = np.zeros(choices, np.float32), np.full(choices, -np.inf, np.float32)
        visits[root.actions] = root.visits
        scores[root.actions] = np.log(self._shares())
        tried = sum(root.visits)
        value = root.worth(self._most)
        if value is None:
            value = sum(root.value) / tried if tried else self._value
        return Found(visits, scores, value, self._simulations)

    def _shares(self) -> Array:
        """Of each move of the root: its visits, and so little of its prior that it decides between equal ones alone.
        A move that is certainly worse than another one has none."""
        root = self.root
        shares = np.array(root.visits) + TIE * np.array(root.prior) + TIE**2
        best = max((exact for exact in root.settled if exact is not None), default=-math.inf)
        for move, exact in enumerate(root.settled):
            if exact is not None and exact < best:
                shares[move] = TIE**3
            elif exact is not None and exact >= self._most:
                shares[move] += sum(root.visits)
            elif exact is not None and exact <= -self._most and None in root.settled:
                shares[move] = TIE**3
        return shares

    def _simulate(self, most: int) -> None:
        """Descend until `most` leaves wait or the next would wait for one of them, then ask the model about them."""
        paths: list[_Path] = []
        for _ in range(4 * most):  # some end where nothing is open
            path = self._descend()
            node, move = path[-1]
            if (exact := node.settled[move]) is not None:
                self._add(path, exact, certain=True)
            elif node.children[move] is True:  # another one waits for it
                for node, move in path:
                    node.pending[move] -= 1
                    node.count -= 1
                break
            else:
                node.children[move] = True
                paths.append(path)
                if len(paths) == most:
                    break
        if paths:
            self._expand(paths)

    def _descend(self) -> _Path:
        """The moves down to one that was not tried yet, or waits, or is settled."""
        node, path = self.root, _Path()
        low, span = (self._low, self._high - self._low) if self._high > self._low else (0.0, 1.0)
        while True:
            move = node.best(low, span)
            path.append((node, move))
            node.pending[move] += 1
            node.count += 1
            child = node.children[move]
            if not isinstance(child, _Node) or node.settled[move] is not None:
                return path
            node = child

    def _expand(self, paths: list[_Path]) -> None:
        """Make the last move of each path in a row of the game, and value what it leads to."""
        game, k = self._game, len(paths)
        parents = [path[-1] for path in paths]
        game.restore_rows([node.row for node, _ in parents])
        moves = np.zeros((len(self._teams), game.n), np.int32)
        movers = np.array([node.seat for node, _ in parents])
        moves[movers, np.arange(k)] = [node.actions[move] for node, move in parents]
        view = game.step(list(moves))
        rewards = view.reward[np.arange(k), movers].tolist()
        seats, legal, priors, values = self._asked(view, movers)
        rows, over = game.save_rows(), view.over.tolist()
        ended = (view.ending == TERMINATED).all(axis=1).tolist()  # not cut short
        for row, (node, move) in enumerate(parents):
            node.reward[move] = rewards[row]
            sign = 1.0 if self._teams[node.seat] == self._teams[seats[row]] else -1.0
            if not over[row]:
                node.children[move] = _Node(rows[row], int(seats[row]), sign, legal[row], priors[row])
                self._nodes += 1
            worth = 0.0 if ended[row] else self._discount * sign * float(values[row])
            if over[row] and not ended[row]:
                node.children[move] = None
            self._add(paths[row], rewards[row] + worth, certain=ended[row])

    def _asked(self, view: View, movers: Array) -> tuple[Array, Array, Array, Array]:
        """Of the first rows: who is to move (where nobody is, who moved last), what is legal, priors and values."""
        seats, legal, columns = deciding(self._game.spec, view, movers)
        priors, values = self._model.estimates(columns, legal)
        return seats, legal, priors, values

    def _add(self, path: _Path, worth: float, *, certain: bool) -> None:
        """Average into every move of the path what it earned and what it led to; `worth` is that of the last one."""
        exact: float | None = worth if certain else None
        sign = 0.0  # of the position that the move leads to; the last move's worth is given
        for node, move in reversed(path):
            if sign:
                worth = node.reward[move] + self._discount * sign * worth
                exact = None if exact is None else node.reward[move] + sign * exact
            node.visits[move] += 1
            node.pending[move] -= 1
            node.value[move] += worth
            mean = node.value[move] / node.visits[move]
            self._low, self._high = min(self._low, mean), max(self._high, mean)
            if exact is not None:
                node.settled[move] = exact
                exact = node.worth(self._most)
            sign = node.sign
        self._simulations += 1
