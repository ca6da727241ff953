"""What an answer means, and how long to wait: decided without a socket or a clock."""

import json

import numpy as np
import pytest

from sparring.client.gateway import BatchAction, read_answer
from sparring.client.sender import FIRST_PAUSE_S, pause_s


def said(**body):
    return json.dumps(body).encode()


def test_an_answer_with_a_verdict_for_each_chunk_is_judged_whatever_its_status():
    results = [{"verdict": "new"}, {"verdict": "chunk", "reason": "bad", "field": "action", "value": 9, "limit": 1}]
    for status in (200, 422, 409, 403, 410, 429):
        answer = read_answer(status, said(results=results, error={"code": "chunk", "message": "bad"}), 2)
        assert answer.action is BatchAction.PER_CHUNK
        assert [result.verdict for result in answer.results] == ["new", "chunk"]


def test_sample_rate_and_clock_are_taken_from_an_answer():
    answer = read_answer(200, said(results=[{"verdict": "had"}], sample_rate=0.25, time_ms=5), 1)
    assert (answer.sample_rate, answer.time_ms) == (0.25, 5)
    assert read_answer(200, said(results=[{"verdict": "had"}], sample_rate=7.0), 1).sample_rate is None


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (200, BatchAction.RETRY),  # a success without verdicts is not the gateway's
        (400, BatchAction.HALVE),
        (401, BatchAction.REJECTED_CALLER),
        (403, BatchAction.REJECTED_CALLER),
        (404, BatchAction.REJECTED_CALLER),
        (408, BatchAction.RETRY),
        (410, BatchAction.PLAYER_ERASED),
        (413, BatchAction.HALVE),
        (422, BatchAction.HALVE),
        (429, BatchAction.RETRY),
        (500, BatchAction.RETRY),
        (502, BatchAction.RETRY),
        (503, BatchAction.RETRY),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[1", b"\xff", b'{"results": []}'])
def test_an_answer_without_verdicts_means_what_its_status_means(status, fate, body):
    assert read_answer(status, body, 3).action is fate


def test_a_wrong_number_of_verdicts_is_never_taken_for_an_acknowledgement():
    assert read_answer(200, said(results=[{"verdict": "new"}]), 2).action is BatchAction.RETRY


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("1e9", 3600.0), ("Tue", None)])
def test_retry_after_is_honoured_within_reason(text, seconds):
    assert read_answer(503, b"", 1, text).retry_after_s == seconds


def test_pauses_double_in_the_mean_are_spread_fully_and_are_capped():
    rng = np.random.default_rng(0)
    for failures in range(1, 40):
        cap = min(30.0, FIRST_PAUSE_S * 2 ** (failures - 1))
        drawn = np.array([pause_s(failures, rng, 30.0) for _ in range(400)])
        assert drawn.min() >= 0.0
        assert drawn.max() <= cap
        assert abs(drawn.mean() - cap / 2) < cap * 0.1


def test_a_pause_asked_for_is_never_shortened():
    rng = np.random.default_rng(0)
    drawn = [pause_s(1, rng, 30.0, retry_after_s=8.0) for _ in range(100)]
    assert min(drawn) >= 8.0
    assert max(drawn) <= 8.8
