"""From weights to a model that people may meet: published, measured, and promoted where the gate lets it through."""

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
from sparring.nets.user_policy import open_policy
from sparring.registry.champions.gate import passes
from sparring.registry.protocol import Registry
from sparring.wire.champion import verify
from sparring.wire.ids import ModelId
from sparring.wire.model import WEIGHTS, Lineage, Model
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model in the registry, what it scored, and whether it reigns."""

    model: ModelId
    evaluation: Evaluation | None  # None: the game has no simulator here
    promoted: bool
    verdict: str  # a sentence
    weights: str = ""  # SHA-256 of the weights alone: a model's card has a time, so its own id is never the same twice


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
        """Make a model of the weights, keep it, measure it beside the champion, and promote it if it is no worse."""
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
        name = self.registry.publish(model)
        self.parents = [name]
        return replace(self._judge(model), weights=model.card.files[WEIGHTS])

    def save(self) -> Tree:
        """What a resumed run needs to know."""
        return list(self.parents)

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self.parents = [ModelId(name) for name in state]

    def _judge(self, model: Model) -> PublishedModel:
        plan = self.plan
        try:
            tried = play_gate_games(model, self._incumbent(), episodes=self.episodes, seed=plan.seed)
        except Missing as error:
            said = f"not promoted: it cannot be measured here ({error.wrong})"
            return PublishedModel(model.id, None, False, said)
        alone, evidence = tried.alone, tried.evidence
        verdict = passes(evidence)
        if not self.promote or not verdict.passed:
            self.registry.judge(model.id, evidence)
            said = "not promoted, as asked" if verdict.passed else f"not promoted: {verdict.reason}"
            return PublishedModel(model.id, alone, False, said)
        self.registry.promote(plan.spec.id, model.id, evidence)
        return PublishedModel(model.id, alone, True, f"promoted: {verdict.reason}")

    def _incumbent(self) -> Model | None:
        signed = self.registry.champion(self.plan.spec.id, self.plan.spec.version)
        if signed is None:
            return None
        champion = verify(signed, signed.key)  # our own registry's key, whichever that is
        return self.registry.fetch(champion.model) if champion.spec == self.plan.spec.hash else None
