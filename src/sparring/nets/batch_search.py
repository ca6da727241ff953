"""A tree search in many games at once, by which a policy teaches itself (learn/algorithms/alphazero.py).

Each game has a tree of its own. A simulation adds one position to every tree, so the network is asked about all games
together: a search of one game for a player who waits is `tree_search.py`. Moves are chosen as in Gumbel AlphaZero
(Danihelka et al. 2022). With the completed values q(a), what a move turned out to be worth or, where it was not tried,
what its position is worth by all that is known, the improved policy of a position is

    π'(a) ∝ π(a) · e^{(c_visit + max_b N(b)) · c_scale · q(a)}

and the next move to try is the one that has fallen most behind it: argmax π'(a) − N(a) / (1 + Σ_b N(b)). At the root π
is mixed with noise, so that moves of small probability are tried, too. With few simulations π' is a better policy than
π, where counted visits would not be; it is what the policy learns, and what is played.

A move is settled where its worth is certain: it ends the game, or leads to a position that has a settled win, or of
which all moves are settled (Winands et al. 2008). q(a) is then exact, and no simulation is spent on it. A game that
tells its `move_outcomes` (games/protocol.py) settles moves of every position two plies ahead, without the network.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED, Game, SearchableGame
from sparring.jit import compiled
from sparring.nets.forward import Forward
from sparring.nets.policies import log_softmax, masked
from sparring.nets.tree_search import POLICY_TARGET, SearchSpec, deciding, move_outcomes, obstacle
from sparring.wire.chunk import Array

VISIT = 50.0  # c_visit, of values between 0 and 1
ILLEGAL = -1e30
NOISE_CONCENTRATION = 1.0  # of the Dirichlet distribution that the root's noise is drawn from


class BatchSearch:
    """Searches up to game.n positions at a time, each with the same number of simulations."""

    def __init__(self, game: Game, search: SearchSpec) -> None:
        """`game` is the search's own; ConfigError where it cannot be searched."""
        spec = game.spec
        if wrong := obstacle(game, spec):
            raise ConfigError(f"it cannot be searched: {wrong}", where=f"game {spec.id}", do="Use ppo, dqn or mmd")
        assert isinstance(game, SearchableGame)
        self._game, self._simulations, self._noise = game, search.simulations, search.root_noise
        self._chance, self._scale = search.random_moves, search.value_scale
        # Between two of one seat's decisions every seat moves once.
        self._discount = search.discount ** (1 / len(spec.seats))
        self._teams = np.array([seat.team for seat in spec.seats])
        # What two teams play for; where there is one, the values that a search meets are scaled to 0..1.
        self._bounds = spec.seats[0].reward_bounds if spec.has_rivals else (np.inf, -np.inf)
        # A forced win within the tree is worth no less, however many plies it takes; unless teams earn before the end.
        self._sure = self._bounds[1] * self._discount**search.simulations if spec.has_rivals else np.inf
        game.reset(np.zeros(game.n, np.uint64), np.ones(game.n, bool))

    def search(
        self, rows: Sequence[bytes], seats: Array, out: dict[str, Array], legal: Array, forward: Forward, rng: Generator
    ) -> dict[str, Array]:
        """Look ahead from `rows`, states in which `seats` are to move; `out` is what the network says of them. The
        improved policy as "logits", and as POLICY_TARGET [k, choices]; what the positions are then worth as "value"."""
        k, nodes, every = len(rows), self._simulations + 1, np.arange(len(rows))
        trees, prior = Trees.of(k, nodes, legal.shape[1], self._bounds), _log_policy(out["logits"], legal)
        trees.note(0, self._noisy(prior, legal, rng), out["value"], self._teams[seats])
        self._game.restore_rows(rows)
        self._settle(trees, 0, legal)
        states, movers = [[row] for row in rows], np.repeat(np.asarray(seats)[:, None], nodes, axis=1)
        for node in range(1, nodes):
            leaf, move = _select(trees, self._scale)
            self._game.restore_rows([states[game][at] for game, at in enumerate(leaf.tolist())])
            mover = movers[every, leaf]
            moves = np.zeros((len(self._teams), self._game.n), np.int32)
            # Where nothing is left to try any legal move will do: what it leads to is not hung into the tree.
            moves[mover, every] = np.where(move >= 0, move, trees.prior[every, leaf].argmax(axis=1))
            view = self._game.step(list(moves))
            movers[:, node], allowed, columns = deciding(self._game.spec, view, mover)
            said = forward(columns)
            for game, row in enumerate(self._game.save_rows()[:k]):
                states[game].append(row)
            ended = (view.ending[:k] == TERMINATED).all(axis=1)
            value, reward = np.where(ended, np.float32(0), said["value"]), view.reward[every, mover]
            if reward[~view.over[:k]].any():  # a position may be worth any sum
                self._sure = np.inf
            if self._sure < np.inf:
                value = np.clip(value, *self._bounds)
            trees.note(node, _log_policy(said["logits"], allowed), value, self._teams[movers[:, node]])
            trees.reward[:, node], trees.over[:, node] = reward, view.over[:k]
            self._settle(trees, node, allowed)
            _grow(trees, leaf, move, node, ended, self._discount, self._sure)
        trees.prior[:, 0] = prior
        target, worth = _improved_roots(trees, self._scale, self._sure)
        played = (1 - self._chance) * target + self._chance * legal / legal.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            return {"logits": np.log(played.astype(np.float32)), "value": worth, POLICY_TARGET: target}

    def _settle(self, trees: "Trees", node: int, legal: Array) -> None:
        """Settle what the game tells of the moves of a node of every tree; the game's rows are those positions."""
        outcomes, (low, high) = move_outcomes(self._game, legal), self._bounds
        trees.settled[:, node][outcomes > 0] = high
        trees.settled[:, node][outcomes < 0] = self._discount * low

    def _noisy(self, prior: Array, legal: Array, rng: Generator) -> Array:
        """The prior with the root's share of noise."""
        if not self._noise:
            return prior
        noise = rng.gamma(NOISE_CONCENTRATION, size=prior.shape) * legal
        mixed = (1 - self._noise) * np.exp(prior) + self._noise * noise / noise.sum(axis=1, keepdims=True)
        return np.where(legal, np.log(mixed + 1e-30), np.float32(ILLEGAL)).astype(np.float32)


class Trees(NamedTuple):
    """k trees side by side: what is known of each move of each node, [k, nodes, choices], and of the node itself."""

    prior: Array  # log-probabilities of moves, ILLEGAL where they are not legal
    worth: Array  # of a move, summed over its visits
    visits: Array
    child: Array  # the node behind a move; -1: it was not tried
    settled: Array  # what a move is certainly worth; NaN: that is not known
    value: Array  # [k, nodes]: what the network thinks of the node, for who is to move
    team: Array  # whose move it is
    over: Array
    reward: Array  # earned by the move that led here
    parent: Array  # [k, nodes, 2]: the node before, and the move
    bounds: Array  # [k, 2]: of values

    @classmethod
    def of(cls, k: int, nodes: int, choices: int, bounds: tuple[float, float]) -> "Trees":
        def zeros(*shape: int, dtype: type = np.float32) -> Array:
            return np.zeros((k, nodes, *shape), dtype)

        counts = zeros(choices, dtype=np.int32), zeros(choices, dtype=np.int32) - 1
        moves = zeros(choices), zeros(choices), *counts, zeros(choices) + np.float32(np.nan)
        at_node = zeros(), zeros(dtype=np.int32), zeros(dtype=np.bool_), zeros()
        return cls(*moves, *at_node, zeros(2, dtype=np.int32) - 1, np.tile(np.array(bounds), (k, 1)))

    def note(self, node: int, prior: Array, value: Array, team: Array) -> None:
        """What the network says of a node of every tree, and who moves there."""
        self.prior[:, node], self.value[:, node], self.team[:, node] = prior, value, team


def _log_policy(logits: Array, legal: Array) -> Array:
    """Log-probabilities of legal moves, ILLEGAL elsewhere."""
    scores = log_softmax(masked(np.asarray(logits, np.float32), legal))
    return np.where(legal, scores, np.float32(ILLEGAL))


@compiled
def _certain(trees: Trees, tree: int, node: int, sure: float) -> float:
    """What a node is worth for who is to move, if that is certain, else NaN: a move wins, or all are settled."""
    best, open_moves = -np.inf, 0
    for move in range(trees.prior.shape[2]):
        if trees.prior[tree, node, move] > 0.5 * ILLEGAL:
            if np.isnan(trees.settled[tree, node, move]):
                open_moves += 1
            else:
                best = max(best, trees.settled[tree, node, move])
    return best if best >= sure or open_moves == 0 else np.nan


@compiled
def _completed(trees: Trees, tree: int, node: int, move: int, known: float) -> float:
    """q: what a move is certainly worth, or was on average, or what is known of its position."""
    settled, visits = trees.settled[tree, node, move], trees.visits[tree, node, move]
    if not np.isnan(settled):
        return float(settled)
    return float(trees.worth[tree, node, move] / visits) if visits else known


@compiled
def _improve(trees: Trees, tree: int, node: int, c_scale: float, policy: Array) -> float:
    """Write the improved policy of one node into `policy`; what the node is worth by it."""
    prior, visits = trees.prior[tree, node], trees.visits[tree, node]
    most, total, tried, seen = 0, 0, 0.0, 0.0
    for move in range(len(prior)):
        if visits[move]:
            share = np.exp(prior[move])
            most = max(most, visits[move])
            total += visits[move]
            tried += share
            seen += share * _completed(trees, tree, node, move, 0.0)
    value = trees.value[tree, node]
    known = value if total == 0 or tried <= 0 else (value + total * seen / tried) / (1 + total)
    low, span, top = trees.bounds[tree, 0], trees.bounds[tree, 1] - trees.bounds[tree, 0], -np.inf
    scale = (VISIT + most) * c_scale / span if span > 0 else 0.0
    for move in range(len(prior)):
        q = _completed(trees, tree, node, move, known)
        policy[move] = prior[move] + (scale * (q - low) if scale else 0.0)
        top = max(top, policy[move])
    mass, better = 0.0, 0.0
    for move in range(len(prior)):
        policy[move] = np.exp(policy[move] - top) if prior[move] > 0.5 * ILLEGAL else 0.0
        mass += policy[move]
        better += policy[move] * _completed(trees, tree, node, move, known)
    for move in range(len(prior)):
        policy[move] /= mass
    return better / mass


@compiled
def _select(trees: Trees, c_scale: float) -> Any:
    """Of every tree: the node to grow and the move to try there; -1 where that node is an end, or all is settled."""
    count, choices = len(trees.prior), trees.prior.shape[2]
    leaf, tried, policy = np.zeros(count, np.int64), np.full(count, -1), np.zeros(choices)
    for tree in range(count):
        node = 0
        while not trees.over[tree, node]:
            _improve(trees, tree, node, c_scale, policy)
            visits = trees.visits[tree, node]
            total, best, behind = visits.sum(), -1, -np.inf
            for move in range(choices):
                lag = policy[move] - visits[move] / (1 + total)
                is_open = np.isnan(trees.settled[tree, node, move]) and trees.prior[tree, node, move] > 0.5 * ILLEGAL
                if is_open and lag > behind:
                    best, behind = move, lag
            if best < 0:
                break
            if trees.child[tree, node, best] < 0:
                tried[tree] = best
                break
            node = trees.child[tree, node, best]
        leaf[tree] = node
    return leaf, tried


@compiled
def _grow(trees: Trees, leaf: Array, tried: Array, node: int, ended: Array, discount: float, sure: float) -> None:
    """Hang the new node of every tree below its leaf, and average what it is worth into every move that led there.
    `ended`: by the game's rules, not cut short."""
    for tree in range(len(trees.prior)):
        at, exact = leaf[tree], np.nan
        result = trees.value[tree, at]  # of a game that was cut short there
        if tried[tree] >= 0:
            trees.child[tree, at, tried[tree]] = node
            trees.parent[tree, node, 0], trees.parent[tree, node, 1] = at, tried[tree]
            at, result = node, trees.value[tree, node]
            if ended[tree]:
                exact = 0.0
            elif not trees.over[tree, node]:  # a game that is cut short is worth what the network thinks
                exact = _certain(trees, tree, node, sure)
            if not np.isnan(exact):
                result = exact
        while at > 0:
            above, move = trees.parent[tree, at, 0], trees.parent[tree, at, 1]
            sign = 1.0 if trees.team[tree, above] == trees.team[tree, at] else -1.0
            result = trees.reward[tree, at] + discount * sign * result
            trees.worth[tree, above, move] += result
            trees.visits[tree, above, move] += 1
            mean = trees.worth[tree, above, move] / trees.visits[tree, above, move]
            trees.bounds[tree, 0] = min(trees.bounds[tree, 0], mean)
            trees.bounds[tree, 1] = max(trees.bounds[tree, 1], mean)
            if not np.isnan(exact):
                trees.settled[tree, above, move] = trees.reward[tree, at] + discount * sign * exact
                exact = _certain(trees, tree, above, sure)
            at = above


@compiled
def _improved_roots(trees: Trees, c_scale: float, sure: float) -> Any:
    """The improved policy of every root, and what it is worth by that, or for certain."""
    count, choices = len(trees.prior), trees.prior.shape[2]
    policies, values, policy = np.zeros((count, choices), np.float32), np.zeros(count, np.float32), np.zeros(choices)
    for tree in range(count):
        values[tree] = _improve(trees, tree, 0, c_scale, policy)
        policies[tree] = policy
        certain = _certain(trees, tree, 0, sure)
        if not np.isnan(certain):
            values[tree] = certain
    return policies, values
