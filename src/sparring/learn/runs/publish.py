"""Publishes a run's models and lets each one play for promotion.

Who decides that a model becomes champion: `acting/gate_games.py` plays the gate's games and reports the scores as
evidence; `registry/champions/gate.py` (`passes`) decides by the evidence alone; `ModelPublisher` asks both and calls
`Registry.promote` where the gate says yes; the registry signs and records the evidence. `spar models promote` does the
same by hand; with --force-reason an operator overrules the gate.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from sparring.acting.evaluate import Evaluation
from sparring.acting.gate_games import play_gate_games
from sparring.errors import Missing
from sparring.learn.plan import Plan
from sparring.learn.protocol import Sources
from sparring.nets.model_files import make_model
from sparring.nets.policies import BUILT_IN
from sparring.nets.user_code import open_policy
from sparring.registry.champions.gate import passes
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.ids import ModelId
from sparring.wire.model import WEIGHTS, Lineage, Model
from sparring.wire.network import NetworkSpec, Weights


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model in the registry, its score, and whether it was promoted."""

    model: ModelId
    evaluation: Evaluation | None  # None: the game has no simulator here
    promoted: bool
    verdict: str  # a sentence
    weights: str = ""  # SHA-256 of the weights alone: the same weights published twice have two model ids


@dataclass(slots=True)
class ModelPublisher:
    """Publishes the models of one run."""

    plan: Plan
    run: str
    commit: str
    registry: Registry
    episodes: int  # that the gate plays
    promote: bool = True
    clock: Callable[[], float] = time.time
    parents: list[ModelId] = field(default_factory=list)  # the last model of this run, once there is one

    def publish(self, network: NetworkSpec, weights: Weights, sources: Sources) -> PublishedModel:
        """Publish the weights as a model, let it play the gate's games, and promote it if the gate lets it pass."""
        plan = self.plan
        lineage = Lineage(
            algorithm=plan.algo,
            config=asdict(plan.settings),
            parents=tuple(self.parents),
            steps=dict(sources.steps),
            store_until_ms=sources.store_until_ms,
            commit=self.commit,
            seed=plan.seed,
            run=self.run,
        )
        policy = plan.policy
        if policy not in BUILT_IN:
            policy = open_policy(policy, plan.spec.seats[0].action).deployed
        model = make_model(plan.spec, network, weights, policy, lineage, int(self.clock() * 1000))
        self.parents = [self.registry.publish(model)]
        return replace(self._stand_for_promotion(model), weights=model.card.files[WEIGHTS])

    def _stand_for_promotion(self, model: Model) -> PublishedModel:
        try:
            played = play_gate_games(model, self._incumbent(), episodes=self.episodes, seed=self.plan.seed)
        except Missing as error:
            verdict = f"not promoted: it cannot be measured here ({error.wrong})"
            return PublishedModel(model.id, None, False, verdict)
        gate = passes(played.evidence)
        if self.promote and gate.passed:
            self.registry.promote(self.plan.spec.id, model.id, played.evidence)
            return PublishedModel(model.id, played.alone, True, f"promoted: {gate.reason}")
        self.registry.save_evidence(model.id, played.evidence)
        verdict = "not promoted, as asked" if gate.passed else f"not promoted: {gate.reason}"
        return PublishedModel(model.id, played.alone, False, verdict)

    def _incumbent(self) -> Model | None:
        signed = self.registry.champion(self.plan.spec.id, self.plan.spec.version)
        if signed is None:
            return None
        champion = verify(signed, signed.key)  # the registry is our own: its key is trusted
        return self.registry.fetch(champion.model) if champion.spec == self.plan.spec.hash else None
