"""Players by name: a model's id or the beginning of one, champion:GAME, script:GAME/NAME."""

from dataclasses import dataclass

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import spec_of
from sparring.games.scripts import script
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

FULL = 64  # hex digits of a model's id
LEAST = 6


@dataclass(frozen=True, slots=True)
class Named:
    """A player, the game that it plays, and its full name."""

    game: str
    name: str
    player: Model | str


def named(text: str, registry: Registry, game: str | None = None) -> Named:
    """Whoever is called `text`; Missing otherwise. With `game`, NAME and script:NAME are that game's scripts."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "champion":
        return _champion(rest, registry)
    if colon and kind == "script":
        place, slash, name = rest.rpartition("/")
        place = place if slash else game or ""
        if not place:
            raise ConfigError(f"{text!r} names no game", where="player", do="Write script:GAME/NAME")
        script(place, name)
        return Named(place, f"script:{place}/{name}", name)
    if len(text) >= LEAST and all(char in "0123456789abcdef" for char in text):
        model = registry.fetch(_whole(text, registry))
        return Named(model.card.game, model.id, model)
    if game is not None:
        script(game, text)
        return Named(game, f"script:{game}/{text}", text)
    raise ConfigError(
        f"{text!r} is no player", where="player", do="Write a model's id, champion:GAME or script:GAME/NAME"
    )


def _champion(game: str, registry: Registry) -> Named:
    spec = spec_of(game)
    signed = registry.champion(spec.id, spec.version)
    if signed is None:
        raise Missing(f"{game} has no champion yet", where="registry", do=f"Train one: `spar train {game}`")
    model = registry.fetch(verify(signed, signed.key).model)
    return Named(game, model.id, model)


def _whole(text: str, registry: Registry) -> ModelId:
    """The one model whose id begins with `text`."""
    if len(text) == FULL:
        return ModelId(text)
    found = [model for model in registry.ids() if model.startswith(text)]
    if len(found) != 1:
        wrong = f"{len(found)} models begin so" if found else "there is no such model"
        raise Missing(wrong, where=f"model {text}", do="`spar models list` shows their ids")
    return found[0]
