"""Whether the gateway lives, whether it can keep what it is given, and what it counted."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import SparringError
from sparring.gateway.http_errors import json_response
from sparring.gateway.state import GatewayState

BEGUN_S = time.monotonic()


async def get_health(request: Request, parts: GatewayState) -> Response:
    """The loop runs."""
    return json_response({"status": "ok", "into": _into(parts)})


async def get_readiness(request: Request, parts: GatewayState) -> Response:
    """What is uploaded can be kept: an append of nothing takes the store's write lock; a stream is asked."""
    flow = parts.commits.flow()
    try:
        async with asyncio.timeout(5.0):
            if parts.stream is None:
                await asyncio.to_thread(parts.store.append, [])
            else:
                await asyncio.to_thread(parts.stream.ready)
    except (SparringError, TimeoutError):
        return json_response({"status": f"the {_into(parts)} does not take writes"}, 503, {"Retry-After": "5"})
    if flow.waiting_chunks >= flow.capacity_chunks:
        return json_response({"status": "the queue is full"}, 503, {"Retry-After": "1"})
    return json_response({"status": "ok", "into": _into(parts)})


def _into(parts: GatewayState) -> str:
    return "store" if parts.stream is None else "stream"


async def get_metrics(request: Request, parts: GatewayState) -> Response:
    """Prometheus' text."""
    flow, now_s = parts.commits.flow(), time.monotonic()
    text = parts.metrics.text(
        {
            "spar_uptime_seconds": now_s - BEGUN_S,
            "spar_queue_chunks": flow.waiting_chunks,
            "spar_queue_capacity_chunks": flow.capacity_chunks,
            "spar_queue_oldest_seconds": flow.oldest_s,
            "spar_commits_total": flow.commits,
            "spar_into_stream": parts.stream is not None,
            "spar_sample_rate": parts.sampling.rate(now_s),
            "spar_played_steps_per_second": parts.sampling.played_steps_per_s(now_s),
        }
    )
    return Response(text, media_type="text/plain; version=0.0.4")
