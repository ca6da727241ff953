"""A dense layer over bytes that are mostly zero, as a board's are: it adds up the matrix's rows of the others.

For 84 inputs of which 13 % are set, and 256 units, a row takes 0.23 µs where product, bias and ReLU take 0.59.
What a row comes to does not depend on the rows beside it.
"""

from collections.abc import Callable

import numpy as np

from sparring.jit import released
from sparring.wire.chunk import Array


def sparse_dense(weight: Array, bias: Array, *, relu: bool) -> Callable[[Array], Array]:
    """x, uint8 [n, inputs] → float32 [n, units]; ConfigError without numba."""
    matrix, bias = np.array(weight.T, order="C"), bias.copy()

    def step(x: Array) -> Array:
        out = np.empty((len(x), len(bias)), np.float32)
        _add_rows(np.ascontiguousarray(x), matrix, bias, relu, out)
        return out

    return step


@released
def _add_rows(x: Array, matrix: Array, bias: Array, relu: bool, out: Array) -> None:
    places = np.empty(x.shape[1] + 1, np.int64)  # of the inputs that are not zero
    for i in range(len(x)):
        row, seen, there = out[i], x[i], 0
        for j in range(x.shape[1]):
            places[there] = j
            there += seen[j] != 0
        row[:] = bias
        k = 0
        while k + 4 <= there:  # four at a time, so that the sums are read and written less often
            a, b, c, d = places[k], places[k + 1], places[k + 2], places[k + 3]
            va, vb, vc, vd = np.float32(seen[a]), np.float32(seen[b]), np.float32(seen[c]), np.float32(seen[d])
            ra, rb, rc, rd = matrix[a], matrix[b], matrix[c], matrix[d]
            for j in range(len(row)):
                row[j] += va * ra[j] + vb * rb[j] + vc * rc[j] + vd * rd[j]
            k += 4
        while k < there:
            a = places[k]
            va, ra = np.float32(seen[a]), matrix[a]
            for j in range(len(row)):
                row[j] += va * ra[j]
            k += 1
        if relu:
            for j in range(len(row)):
                row[j] = max(row[j], np.float32(0))
