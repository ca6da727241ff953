"""RLlib warns of its own old ways, on import and at work; those who use it here cannot mend them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed() -> Iterator[None]:
    """No warnings inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
