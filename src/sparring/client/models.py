"""The models that a client holds: a thread that looks for champions, verifies, keeps and loads them.

Guards against the four tricks of an update: an edited or foreign manifest (signature by the trusted key), an
older one (the counter never goes back, also over a restart), a frozen server (expiry), and files of another
model (hashes). The clock is this machine's: a gateway must not be able to talk its expiry away. `accepted` decides
without I/O; `HeldChampion` is what is remembered on disk.
"""

import logging
import threading
import time
from pathlib import Path

import msgspec
from numpy.random import Generator

from sparring.client.file_lock import locked, write_whole
from sparring.client.gateway import Gateway
from sparring.client.statistics import Counters
from sparring.errors import Missing, ModelDamaged, Refused, SparringError
from sparring.games.spec import GameSpec
from sparring.nets.chooser import Chooser, LadderChooser
from sparring.wire.champion import Champion, Signed, for_client, verify
from sparring.wire.ids import ModelId
from sparring.wire.model import ONNX, Card, Model, check
from sparring.wire.strengths import Strengths, no_style, verify_strengths

log = logging.getLogger("sparring.client")


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


_read_held, _read_card = msgspec.json.Decoder(HeldChampion).decode, msgspec.json.Decoder(Card).decode
_read_signed = msgspec.json.Decoder(Signed).decode


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
            return _read_held(self._path.read_bytes())
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


class Models:
    """Owns its thread. `chooser(seat)` is what a new episode of that seat acts with, to its end."""

    def __init__(
        self,
        folder: Path,
        game: GameSpec,
        client: str,
        trust: str | None,
        counters: Counters,
        strength: float | None = None,
        style: str | None = None,
    ) -> None:
        """With a `strength` below 1 or a `style` the game's ladder of strengths is looked for, too."""
        self._folder, self._game = folder, game
        self._strength, self._style = 1.0 if strength is None else strength, style
        self._by_ladder = self._strength < 1.0 or style is not None
        self._step: LadderChooser | None = None
        self._ladder: Strengths | None = None
        self._client, self._trust, self._counters = client, trust, counters
        self._seats: dict[int, str] = {}  # seat → ETag of the manifest heard last
        self._choosers: dict[int, Chooser] = {}
        self._for_all: Chooser | None = None
        self._expires_at_ms: dict[int, int] = {}
        self.absent: set[int] = set()  # seats of which the gateway said that there is no champion yet
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._polled = threading.Condition()
        self._begun, self._done = 0, 0  # polls
        self._thread: threading.Thread | None = None

    def start(self, gateway: Gateway, every_s: float, rng: Generator) -> None:
        """Load what is held on disk for the first seat, or for all where they are of several kinds, then ask `gateway`
        for newer ones in the background."""
        self._gateway = gateway
        for seat in range(len(self._game.seats) if len(self._game.kinds) > 1 else 1):
            self._add_seat(seat)
        self._begin_ladder()
        self._thread = threading.Thread(target=self._run, args=(every_s, rng), name="sparring-models", daemon=True)
        self._thread.start()

    def chooser(self, seat: int) -> Chooser | LadderChooser | None:
        """What acts for that seat: the step of the ladder for this strength and style where there is a ladder, else the
        newest verified champion; None where there is none yet."""
        if self._thread is not None and seat not in self._seats:
            self._add_seat(seat)
            self._wake.set()
        return self._step or self._choosers.get(seat) or self._shared(seat)

    @property
    def complete(self) -> bool:
        """Whether the first seat has its champion, and the ladder where one is looked for."""
        return self.chooser(0) is not None and (self._ladder is not None or not self._by_ladder)

    def _shared(self, seat: int) -> Chooser | None:
        """The model of another seat, where its manifest is for every seat and it takes what this one sees."""
        if self._for_all is None:
            return None
        try:
            self._for_all.check(self._game.seats[seat], self._game.frame_stack)
        except ModelDamaged:
            return None
        return self._for_all

    def wait(self, timeout_s: float) -> bool:
        """Until the champions have been asked for once more; whether that happened in time."""
        if self._thread is None:
            return False  # the gateway's own model acts, or there is no gateway
        with self._polled:
            mine = self._begun + 1  # one that is under way may have asked before what the caller waits for
            self._wake.set()
            return self._polled.wait_for(lambda: self._done >= mine or self._stopping.is_set(), timeout_s)

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, every_s: float, rng: Generator) -> None:
        while not self._stopping.is_set():
            with self._polled:
                self._begun += 1
            for seat in tuple(self._seats):
                self._poll(seat)
            if self._by_ladder:
                self._poll_ladder()
            with self._polled:
                self._done = self._begun
                self._polled.notify_all()
            # Jittered, so that clients which started together do not ask together for ever.
            self._wake.wait(every_s * (0.8 + 0.4 * float(rng.random())))
            self._wake.clear()

    def _poll(self, seat: int) -> None:
        now_ms = int(time.time() * 1000)
        try:
            signed, etag = self._gateway.champion(self._game.version, seat, self._seats[seat])
            self.absent.discard(seat)
            if signed is not None:
                file = self._champion_file(seat)
                if self._trust is None and file.read() is None:
                    log.warning("no trust was given: the first key is pinned, %s", signed.key)
                champion = file.accept(signed, self._trust, game=self._game, seat=seat, now_ms=now_ms)
                self._follow(champion, seat)
                file.loaded(signed, etag)
                self._seats[seat] = etag
        except Missing:
            self.absent.add(seat)
            log.debug("no champion of %s %s yet", self._game.id, self._game.version)
        except (SparringError, OSError, RuntimeError) as error:
            if not self._stopping.is_set():
                self._counters.warn_once(
                    f"champion: {error}" + ("; the model held before stays" if seat in self._choosers else "")
                )
        self._say_if_expired(seat, now_ms)

    def _poll_ladder(self) -> None:
        """Take the gateway's ladder, if the champion's key signed it and it is not older than the one held."""
        try:
            try:
                signed = self._gateway.strengths(self._game.version)
            except Missing:
                log.debug("no ladder of strengths of %s %s", self._game.id, self._game.version)
                if self._style is not None:
                    self._counters.warn_once(str(no_style(self._game.id, self._style, [])))
                return
            self._use_ladder(signed)
            self._ladder_path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._ladder_path, msgspec.json.encode(signed))
        except (SparringError, OSError, RuntimeError) as error:
            if not self._stopping.is_set():
                meanwhile = "the step held before stays" if self._step else "random moves weaken the champion"
                self._counters.warn_once(f"strengths: {error} Meanwhile {meanwhile}.")

    def _begin_ladder(self) -> None:
        """Begin with the ladder held on disk, whose models are there too."""
        try:
            if self._by_ladder and self._ladder_path.exists():
                self._use_ladder(_read_signed(self._ladder_path.read_bytes()), fetch=False)
        except (SparringError, OSError, msgspec.DecodeError) as error:
            log.debug("the ladder held on disk is not used: %s", error)

    def _use_ladder(self, signed: Signed, *, fetch: bool = True) -> None:
        held = self._champion_file(0).read()
        if self._trust is None and held is None:
            return  # no key is pinned yet: the champion's comes first
        trust = self._trust or (held.key if held is not None else "")
        game = self._game
        ladder = verify_strengths(signed, trust, game)
        if self._ladder is not None and ladder.issued_at_ms < self._ladder.issued_at_ms:
            raise _not("the strengths are older than those seen before", "Ask the gateway's operator")
        if ladder == self._ladder:
            return
        try:
            step = ladder.step(self._strength, self._style)
        except Refused as error:  # styles change with the league: the game goes on without
            self._counters.warn_once(str(error))
            if self._strength >= 1.0:
                self._ladder, self._step = ladder, None
                return
            step = ladder.step(self._strength)
        model = Chooser((self._fetch if fetch else self._read)(step.model))
        model.check(game.seats[0], game.frame_stack)
        self._ladder, self._step = ladder, LadderChooser(step, model)
        about = f"strength {self._strength}" + (f" of style {self._style}" if self._style else "")
        log.info("%s is %s: %s", about, step.model[:12], step.does)

    @property
    def _ladder_path(self) -> Path:
        return self._folder / "champion" / f"{self._game.version.encode().hex()[:64] or 'none'}-strengths.json"

    def _follow(self, champion: Champion, seat: int) -> None:
        """Load the model that the manifest names for this client."""
        self._expires_at_ms[seat] = champion.expires_at_ms
        model = for_client(champion, self._client)
        known = next((chooser for chooser in self._choosers.values() if chooser.id == model), None)
        self._install(known or Chooser(self._fetch(model)), champion, seat)

    def _install(self, chooser: Chooser, champion: Champion, seat: int) -> None:
        chooser.check(self._game.seats[seat], self._game.frame_stack)
        if self._choosers.get(seat) is not chooser:
            log.info("seat %d acts with model %s from its next episode on", seat, chooser.id[:12])
        self._choosers[seat] = chooser
        if champion.seat is None:
            self._for_all = chooser

    def _fetch(self, model: ModelId) -> Model:
        """From disk where it is whole, else from the gateway; verified either way."""
        try:
            return self._read(model)
        except (FileNotFoundError, ModelDamaged) as error:
            log.debug("model %s is not on disk (%s)", model[:12], error)
        found = self._checked(model, self._gateway.file(model, "card.json"), self._gateway.file(model, ONNX))
        folder = self._folder / "models" / model
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / ONNX, found.files[ONNX])
            write_whole(folder / "card.json", msgspec.json.encode(found.card))
        except OSError as error:
            self._counters.warn_once(f"{folder}: it is not kept: {error}. Free some space.")
        return found

    def _read(self, model: ModelId) -> Model:
        folder = self._folder / "models" / model
        return self._checked(model, (folder / "card.json").read_bytes(), (folder / ONNX).read_bytes())

    def _checked(self, model: ModelId, card: bytes, onnx: bytes) -> Model:
        try:
            read = _read_card(card)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"its card does not read: {error}"
            raise ModelDamaged(wrong, where=f"model {model[:12]}", do="It is fetched again") from None
        found = check(model, read, {ONNX: onnx})
        if (read.game, read.spec) != (self._game.id, self._game.hash):
            wrong = f"it is for {read.game} with spec {read.spec[:12]}, this game has {self._game.hash[:12]}"
            raise ModelDamaged(wrong, where=f"model {model[:12]}", do="Train for this version")
        return found

    def _add_seat(self, seat: int) -> None:
        """Begin with the model held on disk: verified again, but however old, since none newer is known."""
        self._seats[seat] = ""
        try:
            held = self._champion_file(seat).read()
            if held is not None and held.running is not None:
                champion = belongs(held.running, self._trust or held.key, game=self._game, seat=seat)
                self._expires_at_ms[seat] = champion.expires_at_ms
                self._install(Chooser(self._read(for_client(champion, self._client))), champion, seat)
                if held.signed == held.running:
                    self._seats[seat] = held.etag
        except FileNotFoundError:
            log.debug("the model held for seat %d is not on disk; it is fetched", seat)
        except (ModelDamaged, OSError) as error:
            self._counters.warn_once(f"the model held on disk is not used: {error}")

    def _say_if_expired(self, seat: int, now_ms: int) -> None:
        expires_at_ms = self._expires_at_ms.get(seat)
        if expires_at_ms is not None and expires_at_ms <= now_ms and seat in self._choosers:
            self._counters.warn_once(
                f"the champion's manifest for seat {seat} has expired; the verified model held goes on"
            )

    def _champion_file(self, seat: int) -> ChampionFile:
        version = self._game.version.encode().hex() or "none"
        return ChampionFile(self._folder / "champion" / f"{version[:64]}-{seat}.json")
