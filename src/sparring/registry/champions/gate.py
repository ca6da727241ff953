"""The gate: may a model replace the champion? Decided from what both scored, and from nothing else."""

import math
from dataclasses import dataclass

from sparring.registry.protocol import Evidence


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer and its reason, as a sentence for people."""

    passed: bool
    reason: str


def passes(evidence: Evidence) -> Verdict:
    """Whether the evidence is enough: the new model is not worse than the one it would replace.

    With opponents: it scores at least half against the incumbent, a draw being half a win. Alone: its mean
    return is at least the incumbent's on the same seeds. Without an incumbent any finite score is enough.
    """
    if evidence.episodes < 1:
        return Verdict(False, "no episode was played")
    if not (math.isfinite(evidence.mean) and math.isfinite(evidence.sd)):
        return Verdict(False, f"its return is {evidence.mean} ± {evidence.sd}, which is not finite")
    if evidence.incumbent is None:
        return Verdict(True, f"it is the first, with a return of {evidence.mean:.4g} ± {evidence.sd:.3g}")
    if evidence.wins is not None or evidence.draws is not None or evidence.losses is not None:
        return _against(evidence.wins or 0, evidence.draws or 0, evidence.losses or 0)
    if evidence.incumbent_mean is None or not math.isfinite(evidence.incumbent_mean):
        return Verdict(False, "the incumbent was not measured beside it")
    words = f"{evidence.mean:.4g} against the incumbent's {evidence.incumbent_mean:.4g} on the same seeds"
    better = evidence.mean >= evidence.incumbent_mean
    return Verdict(better, f"it returns {words}" if better else f"it is worse: {words}")


def _against(wins: int, draws: int, losses: int) -> Verdict:
    games = wins + draws + losses
    if games < 1 or min(wins, draws, losses) < 0:
        return Verdict(False, "it played no game against the incumbent")
    score = (wins + draws / 2) / games
    words = f"{score:.3f} against the incumbent ({wins} won, {draws} drawn, {losses} lost)"
    return Verdict(score >= 0.5, f"it scores {words}" if score >= 0.5 else f"it is worse: it scores {words}")
