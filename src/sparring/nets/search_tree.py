"""The tree of one search (tree_search.py) as arrays, and the loops over them, which numba compiles where it is there.

A node is a position; its moves lie side by side among all moves, `moves[node]` of them from `first[node]` on. NaN: a
move is not settled.
"""

import math
from typing import NamedTuple

import numpy as np

from sparring.jit import released_where_possible
from sparring.wire.chunk import Array

EXPLORATION = 2.0  # c
UNTRIED = 0.1  # a move that was not tried counts as so much worse than its position
NOT_TRIED, WAITS = -1, -2  # in `child` where there is no node: the move was not tried; its evaluation is pending


class SearchTree(NamedTuple):
    """What is known of each node and each move; arrays are longer than what is used of them."""

    used: Array  # [3]: nodes, moves, simulations
    bounds: Array  # [3]: the lowest and the highest value so far, and what no position exceeds
    # [nodes]
    first: Array
    moves: Array
    seat: Array
    sign: Array  # -1 where the other team made the move that led here
    above: Array  # the move that led here
    tries: Array  # visits of all its moves, those that wait too
    # [moves]
    node: Array  # where it is made
    action: Array
    prior: Array
    child: Array
    visits: Array
    pending: Array
    value: Array  # summed over visits
    reward: Array  # what the move itself earns
    settled: Array  # what it is worth, where every way on was seen

    @classmethod
    def of(cls, low: float, high: float, most: float) -> "SearchTree":
        """Without a node; values lie between `low` and `high` as far as is known."""
        kinds = "iiidii" + "iidiiiddd"
        return cls(np.zeros(3, np.int64), np.array([low, high, most]), *(np.zeros(0, kind) for kind in kinds))

    def with_room(self, nodes: int, moves: int) -> "SearchTree":
        """The same tree with room for so many more."""
        if self.used[0] + nodes <= len(self.first) and self.used[1] + moves <= len(self.action):
            return self
        lengths = [2 * len(self.first) + nodes] * 6 + [2 * len(self.action) + moves] * 9
        grown = [np.append(a, np.zeros(n - len(a), a.dtype)) for a, n in zip(self[2:], lengths, strict=True)]
        return SearchTree(self.used, self.bounds, *grown)

    def root(self, of: Array) -> Array:
        """One of the arrays of moves, of the root's."""
        return np.asarray(of[: self.moves[0]])


class Reached(NamedTuple):
    """The positions behind some moves."""

    seat: Array  # the one to move; at the end of a game the one that moved last
    sign: Array  # 1 where that is the team that made the move, else -1
    legal: Array  # [positions, choices]
    prior: Array
    outcome: Array  # of moves: 1 wins at once, -1 lets the other team win at once, 0: it is not known
    value: Array  # for `seat`
    reward: Array  # of the move
    over: Array  # the game goes on no further
    ended: Array  # by its rules, not cut short


@released_where_possible
def add_node(tree: SearchTree, above: int, seat: int, sign: float, legal: Array, prior: Array, outcome: Array) -> None:
    """A position behind the move `above` (-1: the root), and its legal moves."""
    node, move = tree.used[0], tree.used[1]
    tree.first[node], tree.seat[node], tree.sign[node], tree.above[node] = move, seat, sign, above
    tree.tries[node] = 0
    if above >= 0:
        tree.child[above] = node
    for action in range(len(legal)):
        if legal[action]:
            tree.node[move], tree.action[move], tree.prior[move] = node, action, prior[action]
            tree.child[move], tree.visits[move], tree.pending[move] = NOT_TRIED, 0, 0
            tree.value[move], tree.reward[move] = 0.0, 0.0
            told = outcome[action] != 0 and tree.bounds[2] < np.inf
            tree.settled[move] = outcome[action] * tree.bounds[2] if told else np.nan
            move += 1
    tree.moves[node] = move - tree.used[1]
    tree.used[0], tree.used[1] = node + 1, move


@released_where_possible
def best_move(tree: SearchTree, node: int) -> int:
    """The move of a position to try next."""
    low, high = tree.bounds[0], tree.bounds[1]
    span = high - low if high > low else 1.0
    if high <= low:
        low = 0.0
    first, last, waiting, total = tree.first[node], tree.first[node] + tree.moves[node], 0, 0.0
    for move in range(first, last):
        waiting += tree.pending[move]
        total += tree.value[move]
    known = tree.tries[node] - waiting
    untried = max((total / known - low) / span - UNTRIED, 0.0) if known else 0.5
    rate = EXPLORATION * math.sqrt(tree.tries[node] + 1)
    best, highest = int(first), -np.inf
    for move in range(first, last):
        tried, waits = tree.visits[move], tree.pending[move]
        if not math.isnan(tree.settled[move]):
            score = (tree.settled[move] - low) / span  # nothing more to explore
        else:
            score = (tree.value[move] / tried - low) / span if tried else untried
            if waits:
                score *= tried / (tried + waits)
            score += rate * tree.prior[move] / (1 + tried + waits)
        if score > highest:
            best, highest = move, score
    return best


@released_where_possible
def settled_worth(tree: SearchTree, node: int) -> float:
    """What a position is worth for who is to move, if that is certain, else NaN: a move earns all that can be won, or
    every way on was seen."""
    best, known = -np.inf, 0
    for move in range(tree.first[node], tree.first[node] + tree.moves[node]):
        if not math.isnan(tree.settled[move]):
            known += 1
            best = max(best, tree.settled[move])
    return best if best >= tree.bounds[2] or known == tree.moves[node] else np.nan


@released_where_possible
def back_up(tree: SearchTree, move: int, worth: float, exact: float, discount: float) -> None:
    """Average into every move from here to the root what it earned and what it led to; `worth` is that of this one,
    `exact` the same where it is certain, else NaN."""
    while True:
        tree.visits[move] += 1
        tree.pending[move] -= 1
        tree.value[move] += worth
        mean = tree.value[move] / tree.visits[move]
        tree.bounds[0], tree.bounds[1] = min(tree.bounds[0], mean), max(tree.bounds[1], mean)
        node = tree.node[move]
        if not math.isnan(exact):
            tree.settled[move] = exact
            exact = settled_worth(tree, node)
        sign, move = tree.sign[node], tree.above[node]
        if move < 0:
            break
        worth, exact = tree.reward[move] + discount * sign * worth, tree.reward[move] + sign * exact
    tree.used[2] += 1


@released_where_possible
def collect(tree: SearchTree, leaves: Array, discount: float) -> int:
    """Descend until all of `leaves` are moves that were not tried yet; how many were found. A descent that ends in a
    settled move is counted at once, one that ends in a leaf of another descent counts for nothing in the end."""
    found, met, twice = 0, 0, np.zeros(len(leaves), np.int32)
    for _ in range(4 * len(leaves)):  # some end where nothing is open
        node = 0
        while True:
            move = best_move(tree, node)
            tree.pending[move] += 1
            tree.tries[node] += 1
            if tree.child[move] < 0 or not math.isnan(tree.settled[move]):
                break
            node = tree.child[move]
        if not math.isnan(tree.settled[move]):
            back_up(tree, move, tree.settled[move], tree.settled[move], discount)
        elif tree.child[move] == WAITS:
            twice[met] = move
            met += 1
        else:
            tree.child[move] = WAITS
            leaves[found] = move
            found += 1
        if len(leaves) in (found, met):
            break
    for move in twice[:met]:
        above = move
        while above >= 0:
            tree.pending[above] -= 1
            tree.tries[tree.node[above]] -= 1
            above = tree.above[tree.node[above]]
    return found


@released_where_possible
def hang(tree: SearchTree, leaves: Array, behind: Reached, discount: float) -> None:
    """Hang what the leaves led to into the tree, and average what it is worth into every move on the way there."""
    for row in range(len(leaves)):
        move, reward, sign = leaves[row], behind.reward[row], behind.sign[row]
        tree.reward[move] = reward
        worth, exact = reward + discount * sign * behind.value[row], np.nan
        if not behind.over[row]:
            add_node(tree, move, behind.seat[row], sign, behind.legal[row], behind.prior[row], behind.outcome[row])
            exact = reward + sign * settled_worth(tree, tree.used[0] - 1)
        elif not behind.ended[row]:
            tree.child[move] = NOT_TRIED
        if behind.ended[row]:
            worth = exact = reward
        elif not math.isnan(exact):
            worth = reward + discount * (exact - reward)
        back_up(tree, move, worth, exact, discount)
