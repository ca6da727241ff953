"""A trial: the games that a model plays before it may reign, as evidence for the gate."""

from sparring.learn.evaluate import evaluate
from sparring.registry.protocol import Evidence
from sparring.wire.model import Model


def trial(model: Model, incumbent: Model | None, *, episodes: int, seed: int) -> Evidence:
    """What `model` scores in `episodes` episodes, beside the incumbent on the same seeds, or against it."""
    game = model.card.game
    mine = evaluate(game, model, episodes=episodes, seed=seed, against=incumbent)
    if incumbent is None:
        against = None if mine.wins is None else "script:random"
        return Evidence(episodes=episodes, mean=mine.mean, sd=mine.sd, against=against)
    if mine.wins is not None:
        return Evidence(
            episodes=episodes,
            mean=mine.mean,
            sd=mine.sd,
            incumbent=incumbent.id,
            wins=mine.wins,
            draws=mine.draws,
            losses=mine.losses,
            against=f"model:{incumbent.id}",
        )
    theirs = evaluate(game, incumbent, episodes=episodes, seed=seed)
    return Evidence(
        episodes=episodes,
        mean=mine.mean,
        sd=mine.sd,
        incumbent=incumbent.id,
        incumbent_mean=theirs.mean,
        incumbent_sd=theirs.sd,
    )
