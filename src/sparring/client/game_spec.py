"""Where a client gets its game's spec: given, built in, from the gateway, or as it was last time."""

import logging
from pathlib import Path

import msgspec

from sparring.client.file_lock import write_whole
from sparring.client.transport import Transport
from sparring.errors import ConfigError, Missing, Unreachable
from sparring.games.catalogue import spec_of
from sparring.games.spec import GameSpec, checked, read

log = logging.getLogger("sparring.client")


class _Told(msgspec.Struct, frozen=True):
    spec: GameSpec


def spec_for(game: str, given: GameSpec | str | Path | None, gateway: Transport, cache: Path) -> GameSpec:
    """The spec. Only where it is neither given nor known here is the gateway asked, and then the caller waits."""
    if given is not None:
        spec = given if isinstance(given, GameSpec) else read(Path(given))
        if spec.id != game:
            raise ConfigError(f"the spec is of {spec.id!r}, not {game!r}", where="sparring.connect", do="Name one game")
        return checked(spec, "sparring.connect(spec=…)")
    try:
        return spec_of(game)
    except Missing as unknown:
        try:
            told = gateway.spec()
            spec = checked(msgspec.json.decode(told, type=_Told).spec, gateway.url)
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_whole(cache, told)
            return spec
        except Missing:
            raise unknown from None
        except (Unreachable, msgspec.DecodeError) as error:
            if cache.exists():
                log.warning("%s; the spec of %s is the one fetched last time", error, game)
                return msgspec.json.decode(cache.read_bytes(), type=_Told).spec
            raise
