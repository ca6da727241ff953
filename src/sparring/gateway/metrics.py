"""Counters of one gateway, and how Prometheus reads them."""

from collections import Counter
from collections.abc import Mapping

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

HELP = {
    "spar_requests_total": "Requests answered, by endpoint and status",
    "spar_request_seconds": "Time from the request's head to its answer",
    "spar_chunks_total": "Chunks judged, by verdict",
    "spar_steps_total": "Steps kept for the first time, or taken by the stream",
    "spar_acts_total": "Actions chosen, by whether a model or chance chose",
    "spar_uptime_seconds": "Since this process began to serve",
    "spar_queue_chunks": "Chunks that wait for their commit",
    "spar_queue_capacity_chunks": "Chunks that may wait; more are sent away with 503",
    "spar_queue_oldest_seconds": "How long the first of them has waited",
    "spar_commits_total": "Commits to the store, or appends to the stream",
    "spar_into_stream": "1 where a stream takes what is uploaded, 0 where the store does",
    "spar_sample_rate": "Share of episodes asked for",
    "spar_played_steps_per_second": "What all players play, estimated from what they sent",
    "spar_sockets": "Open play sockets",
}


class Metrics:
    """Counts; a name and its labels make a series. Used on the event loop alone."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[float] = Counter()
        self._seconds_sum = 0.0
        self._requests = 0
        self.sockets = 0

    def count(self, name: str, labels: str = "", by: float = 1) -> None:
        """Add to a series; `labels` is as Prometheus writes them, from a fixed set of values only."""
        self._counts[name, labels] += by  # type: ignore[assignment]

    def count_act(self, model: str | None) -> None:
        """An action was chosen by that model, or at random."""
        self.count("spar_acts_total", f'by="{"chance" if model is None else "model"}"')

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._counts["spar_requests_total", f'endpoint="{endpoint}",status="{status}"'] += 1
        self._seconds[next((bound for bound in BUCKETS_S if seconds <= bound), float("inf"))] += 1
        self._seconds_sum += seconds
        self._requests += 1

    def text(self, gauges: Mapping[str, float]) -> str:
        """The exposition: counters, the histogram, and the gauges given."""
        lines: list[str] = []
        for name in sorted({name for name, _ in self._counts}):
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} counter"]
            found = sorted((labels, value) for (one, labels), value in self._counts.items() if one == name)
            lines += [f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}" for labels, value in found]
        lines += self._histogram("spar_request_seconds")
        for name, value in {**gauges, "spar_sockets": self.sockets}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines, total = [f"# HELP {name} {HELP[name]}", f"# TYPE {name} histogram"], 0
        for bound in (*BUCKETS_S, float("inf")):
            total += self._seconds[bound]
            lines.append(f'{name}_bucket{{le="{"+Inf" if bound == float("inf") else bound}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds_sum:g}", f"{name}_count {self._requests}"]
