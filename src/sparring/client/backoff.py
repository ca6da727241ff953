"""How long to wait before the next try: exponential with full jitter, or what the server asked for. No clock here."""

from numpy.random import Generator

FIRST_S = 0.2


def pause_s(failures: int, rng: Generator, most_s: float, retry_after_s: float | None = None) -> float:
    """Seconds before the next try after `failures` in a row.

    Uniform between 0 and FIRST_S · 2^(failures - 1), capped; so a thousand clients that lost one gateway come
    back spread out. A server's Retry-After is a floor, with up to a tenth more for the same reason.
    """
    cap = min(most_s, FIRST_S * 2.0 ** min(failures - 1, 30))
    if retry_after_s is not None:
        return retry_after_s * (1.0 + 0.1 * float(rng.random()))
    return cap * float(rng.random())
