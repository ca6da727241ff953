"""What becomes of the weights that a run has learned: they are published as a model, which stands for champion."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from sparring.acting.evaluate import Evaluation
from sparring.league.gate import GateLimits
from sparring.league.promotion import stand_for_promotion
from sparring.learn.plan import Plan
from sparring.learn.protocol import Sources
from sparring.learn.runs.folder import commit
from sparring.nets.model_files import make_model
from sparring.nets.policies import BUILT_IN
from sparring.nets.user_code import open_policy
from sparring.registry.registry import Registry
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
    seats: tuple[int, ...] = ()  # of its kind, where the game has several
    others: tuple["PublishedModel", ...] = ()  # of the other kinds of seats


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run, or its part for one kind of seats, has learned."""

    plan: Plan
    network: NetworkSpec
    weights: Weights
    sources: Sources


class Publisher(Protocol):
    """What becomes of the weights that a run has learned, every `train.publish_every_s`."""

    parents: list[ModelId]  # the last models of this run, once there are any: one, or one for each kind of seats

    def publish(self, learned: Sequence[Learned], deadline: float = math.inf) -> PublishedModel: ...


@dataclass(slots=True)
class ModelPublisher:
    """Publishes the models of one run, and lets each stand for champion."""

    run: str
    registry: Registry
    gate: GateLimits
    promote: bool = True
    parents: list[ModelId] = field(default_factory=list)

    def publish(self, learned: Sequence[Learned], deadline: float = math.inf) -> PublishedModel:
        """Publish what was learned as models, let them play the gate's games, as many as fit before the `deadline` (of
        time.monotonic), and promote those that the gate lets pass; without `promote` they are measured alone."""
        parents = [self.parents[kind : kind + 1] for kind in range(len(learned))]
        models = [model_of(one, self.run, before) for one, before in zip(learned, parents, strict=True)]
        self.parents = [self.registry.publish(model) for model in models]
        found = stand_for_promotion(self.registry, models, self.gate, promote=self.promote, deadline=deadline)
        published = [
            PublishedModel(
                model.id, one.evaluation, one.promoted, one.verdict, model.card.files[WEIGHTS], learns.plan.kind
            )
            for model, one, learns in zip(models, found, learned, strict=True)
        ]
        return replace(published[0], others=tuple(published[1:]))


def model_of(learned: Learned, run: str, parents: Sequence[ModelId]) -> Model:
    """The weights that a run has learned, as a model."""
    plan, sources = learned.plan, learned.sources
    lineage = Lineage(
        algorithm=plan.algo,
        config=asdict(plan.settings),
        parents=tuple(parents),
        steps=dict(sources.steps),
        store_until_ms=sources.store_until_ms,
        commit=commit(),
        seed=plan.seed,
        run=run,
    )
    policy = plan.policy
    if policy not in BUILT_IN:
        policy = open_policy(policy, plan.spec.seats[0].action).deployed
    made = (learned.network, learned.weights, policy, lineage, int(time.time() * 1000))
    return make_model(plan.whole or plan.spec, *made, plan.kind)
