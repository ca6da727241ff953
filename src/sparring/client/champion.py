"""Which champion a client accepts. `accepted` decides without I/O; `HeldChampion` is what it remembers on disk.

Guards against the four tricks of an update: an edited or foreign manifest (signature by the trusted key), an
older one (the counter never goes back, also over a restart), a frozen server (expiry), and files of another
model (hashes, in models.py). The clock is this machine's: a gateway must not be able to talk its expiry away.
"""

from pathlib import Path

import msgspec

from sparring.client.file_lock import locked, write_whole
from sparring.errors import ModelDamaged
from sparring.games.spec import GameSpec
from sparring.wire.champion import Champion, Signed, verify


class HeldChampion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the champion of one seat.

    `signed` is the newest manifest accepted; `running` the newest whose model was there, whole and loaded: what a
    restart begins with.
    """

    format: int = 1
    key: str
    counter: int
    signed: Signed
    running: Signed | None = None
    etag: str = ""  # of the manifest that runs, so that a restart asks only whether it changed


def accepted(
    signed: Signed, held: HeldChampion | None, trust: str | None, *, game: GameSpec, seat: int, now_ms: int
) -> Champion:
    """The manifest, if this client may follow it; ModelDamaged with the reason otherwise."""
    champion = belongs(signed, trust or (held.key if held is not None else signed.key), game=game, seat=seat)
    if champion.expires_at_ms <= now_ms:
        hours = (now_ms - champion.expires_at_ms) / 3_600_000
        raise _not(f"it expired {hours:.1f} hours ago", "Check this machine's clock, and that the gateway is alive")
    if held is not None and champion.counter < held.counter:
        raise _not(
            f"its counter {champion.counter} is behind {held.counter}, seen before",
            "An old manifest is being replayed: ask the gateway's operator",
        )
    if held is not None and champion.counter == held.counter and signed.payload != held.signed.payload:
        raise _not(f"there are two manifests with counter {champion.counter}", "Ask the gateway's operator")
    return champion


def belongs(signed: Signed, trust: str, *, game: GameSpec, seat: int) -> Champion:
    """The manifest, if `trust` signed it for this very game, version, spec and seat; its age is not asked."""
    champion = verify(signed, trust)
    if (champion.game, champion.version) != (game.id, game.version) or champion.seat not in (None, seat):
        named = f"{champion.game} {champion.version} seat {champion.seat}"
        raise _not(f"it is for {named}, not for {game.id} {game.version} seat {seat}", "Ask the gateway's operator")
    if champion.spec != game.hash:
        raise _not(f"its spec {champion.spec[:12]} is not this game's {game.hash[:12]}", "Train for this version")
    return champion


class ChampionFile:
    """The `HeldChampion` of one seat in a file that several processes share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> HeldChampion | None:
        """What was accepted last; None where nothing was. ModelDamaged where the file does not read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=HeldChampion)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Not "nothing was": that would let an older champion in.
            wrong = f"it does not read: {error}"
            raise ModelDamaged(wrong, where=str(self._path), do="Remove it to pin the gateway's key again") from None

    def accept(self, signed: Signed, trust: str | None, *, game: GameSpec, seat: int, now_ms: int) -> Champion:
        """Judge the manifest against what is held and remember it, under a lock that other processes respect."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._path.with_suffix(".lock")):
            held = self.read()
            champion = accepted(signed, held, trust, game=game, seat=seat, now_ms=now_ms)
            fresh = HeldChampion(key=signed.key, counter=champion.counter, signed=signed)
            if held is not None:
                fresh = msgspec.structs.replace(fresh, running=held.running, etag=held.etag)
            self._write(fresh, held)
            return champion

    def loaded(self, signed: Signed, etag: str) -> None:
        """Its model was verified and runs. A newer manifest that another process accepted meanwhile stays."""
        with locked(self._path.with_suffix(".lock")):
            held = self.read()
            if held is not None:
                self._write(msgspec.structs.replace(held, running=signed, etag=etag), held)

    def _write(self, fresh: HeldChampion, held: HeldChampion | None) -> None:
        if fresh != held:
            write_whole(self._path, msgspec.json.encode(fresh))


def _not(wrong: str, do: str) -> ModelDamaged:
    return ModelDamaged(wrong, where="champion", do=do)
