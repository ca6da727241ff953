"""Networks on one thread, unless a test asks for several."""

from collections.abc import Iterator

import pytest

from sparring.nets.row_threads import set_thread_count


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    set_thread_count(1)
    yield
    set_thread_count(1)
