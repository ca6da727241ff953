"""The promotion gate: not worse than the champion, and always a reason."""

import pytest

from sparring.registry.champions.gate import Verdict, passes
from sparring.registry.protocol import Evidence
from sparring.wire.ids import ModelId

OLD = ModelId("0" * 64)
NAN, INF = float("nan"), float("inf")


def alone(mean, incumbent_mean, episodes=200):
    return Evidence(episodes=episodes, mean=mean, sd=1.0, incumbent=OLD, incumbent_mean=incumbent_mean, incumbent_sd=1)


def against(wins, draws, losses):
    return Evidence(episodes=200, mean=0.0, sd=1.0, incumbent=OLD, wins=wins, draws=draws, losses=losses)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(episodes=5, mean=9.5, sd=2.0), Verdict(True, "it is the first, with a return of 9.5 ± 2")),
        (Evidence(episodes=0, mean=9.5, sd=2.0), Verdict(False, "no episode was played")),
        (Evidence(episodes=5, mean=NAN, sd=2.0), Verdict(False, "its return is nan ± 2.0, which is not finite")),
        (Evidence(episodes=5, mean=1.0, sd=INF), Verdict(False, "its return is 1.0 ± inf, which is not finite")),
        (alone(480.0, 475.5), Verdict(True, "it returns 480 against the incumbent's 475.5 on the same seeds")),
        (alone(480.0, 480.0), Verdict(True, "it returns 480 against the incumbent's 480 on the same seeds")),
        (alone(470.0, 480.0), Verdict(False, "it is worse: 470 against the incumbent's 480 on the same seeds")),
        (alone(470.0, None), Verdict(False, "the incumbent was not measured beside it")),
        (alone(470.0, NAN), Verdict(False, "the incumbent was not measured beside it")),
        (alone(NAN, 1.0), Verdict(False, "its return is nan ± 1.0, which is not finite")),
        (against(60, 40, 100), Verdict(False, "it is worse: it scores 0.400 against the incumbent "
                                              "(60 won, 40 drawn, 100 lost)")),
        (against(80, 40, 80), Verdict(True, "it scores 0.500 against the incumbent (80 won, 40 drawn, 80 lost)")),
        (against(0, 0, 0), Verdict(False, "it played no game against the incumbent")),
        (against(-1, 3, 0), Verdict(False, "it played no game against the incumbent")),
        (against(None, 3, None), Verdict(True, "it scores 0.500 against the incumbent (0 won, 3 drawn, 0 lost)")),
    ],
)  # fmt: skip
def test_the_gate_says_whether_and_why(evidence, verdict):
    assert passes(evidence) == verdict
