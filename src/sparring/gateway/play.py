"""`WS …/play`: hello, start, observe → action, end; many episodes on one socket. Messages: wire/messages.py."""

import logging
import time
from collections import deque
from typing import assert_never

import numpy as np
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sparring.errors import ChunkRefused, NotYours, SparringError, WireError
from sparring.games.spec import GameSpec
from sparring.gateway.http_errors import ServerBusy, TooMany, answer, described
from sparring.gateway.identity import Caller
from sparring.gateway.inference import Decision, InferenceRequest
from sparring.gateway.middleware import CallerCheck
from sparring.gateway.request_views import legal_of, observation_of, seat_of
from sparring.gateway.seat_recorder import SeatRecorder
from sparring.gateway.state import GatewayState, request_id
from sparring.gateway.uploads import keep, prepared
from sparring.wire.chunk import Array, Chunk
from sparring.wire.ids import EpisodeId, asked_for, is_episode
from sparring.wire.messages import (
    PROTOCOL,
    Action,
    End,
    Ended,
    FromGateway,
    Hello,
    Observe,
    Problem,
    Start,
    decode,
    encode,
)

log = logging.getLogger(__name__)

MAX_SOCKETS = 1_024
MAX_OPEN = 128  # seats open on one socket
SUBPROTOCOL = "spar.1"
BROKEN = 1002  # the close code of a conversation that cannot go on


class Play:
    """The endpoint, as an ASGI application."""

    def __init__(self, parts: GatewayState) -> None:
        self._parts = parts
        self._guard = CallerCheck(self._refuse_nothing, parts, "act", "play")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            caller = self._guard.admitted(scope)
            spec = self._parts.spec(scope["path_params"]["game"])
            if self._parts.metrics.sockets >= MAX_SOCKETS:
                raise ServerBusy(
                    f"{MAX_SOCKETS} sockets are open", where="play", do="Try again later", limit=MAX_SOCKETS
                )
        except SparringError as error:
            await socket.send_denial_response(answer(error, request_id(HTTPConnection(scope))))
            return
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", []) else None)
        self._parts.metrics.sockets += 1
        conversation = Conversation(self._parts, caller, spec)
        try:
            await _converse(socket, conversation)
        except WebSocketDisconnect:
            pass  # the usual end
        finally:
            self._parts.metrics.sockets -= 1
            await conversation.leave()

    async def _refuse_nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the guard is only asked who comes in")


async def _converse(socket: WebSocket, conversation: "Conversation") -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        frame: str | bytes = text if text is not None else message.get("bytes") or b""
        said, broken = await conversation.hear(frame)
        if said is None:
            continue
        framed = encode(said, text=text is not None)
        if socket.application_state is not WebSocketState.CONNECTED:
            return
        await (socket.send_text(framed) if isinstance(framed, str) else socket.send_bytes(framed))
        if broken:
            await socket.close(BROKEN)
            return


class _Seat:
    """An open seat and the frames that its model sees stacked."""

    def __init__(self, recorder: SeatRecorder, frames: int) -> None:
        self.recorder = recorder
        self.failed: SparringError | None = None  # why nothing more of it is recorded
        self.held: Decision | None = None  # a recurrent model's last one: its memory goes on, whoever reigns by now
        self._frames: deque[dict[str, Array]] = deque(maxlen=frames)

    def stacked(self, seen: dict[str, Array]) -> dict[str, Array]:
        """The last frames in a row, the first one repeated where there are too few."""
        most = self._frames.maxlen or 1
        if most == 1:
            return seen
        self._frames.append(seen)
        row = [self._frames[0]] * (most - len(self._frames)) + list(self._frames)
        spec = self.recorder.spec.seats[self.recorder.start.seat]
        return {
            leaf.name: np.stack([one[leaf.name] for one in row]).reshape(leaf.stacked(most))
            for leaf in spec.observation
        }


class Conversation:
    """One socket's state: frames in, one answer each. Knows no socket."""

    def __init__(self, parts: GatewayState, caller: Caller, spec: GameSpec) -> None:
        self._parts, self._caller, self._spec = parts, caller, spec
        self._greeted = False
        self._open: dict[tuple[EpisodeId, int], _Seat] = {}

    async def hear(self, frame: str | bytes) -> tuple[FromGateway | None, bool]:
        """The answer to a frame, if it has one, and whether the conversation is over with it."""
        episode: EpisodeId | None = None
        try:
            if (wait_s := self._parts.rates.take(self._caller.id, time.monotonic())) > 0.0:
                limit = self._parts.rates.per_s
                raise TooMany("too many messages", where="rate", limit=limit, retry_s=wait_s)
            message = decode(frame)
            episode = None if isinstance(message, Hello) else message.episode
            if not self._greeted and not isinstance(message, Hello):
                return Problem("protocol", "the first message is hello", "type", episode), True
            match message:
                case Hello():
                    return self._greet(message)
                case Start():
                    self._begin(message)
                    return None, False  # the first observation is answered
                case Observe():
                    return await self._observe(message), False
                case End():
                    return await self._end(message), False
                case forgotten:
                    assert_never(forgotten)
        except WireError as error:
            return Problem("wire", error.wrong[:300]), True
        except SparringError as error:
            _, said = described(error)
            return Problem(said["code"], f"{said['message']}. {said['do']}.", said["field"], episode), False

    async def leave(self) -> None:
        """Keep what is whole of every seat that was left open."""
        for seat in self._open.values():
            try:
                await self._keep(seat.recorder.leave())
            except SparringError as error:
                log.warning("an open seat was not kept: %s", error)
        self._open.clear()

    def _greet(self, hello: Hello) -> tuple[FromGateway, bool]:
        if hello.protocol != PROTOCOL:
            return Problem("protocol", f"protocol {hello.protocol}, this is {PROTOCOL}", "protocol"), True
        if hello.version:
            self._spec = self._parts.spec(self._spec.id, hello.version)
        self._greeted = True
        return Hello(PROTOCOL, self._spec.version), False

    def _begin(self, start: Start) -> None:
        seat_of(self._spec, start.seat)
        place = start.episode, start.seat
        if not is_episode(start.episode):
            raise _wrong("episode", "it is no episode's name: send a UUIDv7 in lower case")
        if place in self._open:
            raise _wrong("episode", "the seat is open already")
        if len(self._open) >= MAX_OPEN:
            raise _wrong("episode", f"{MAX_OPEN} seats are open: end one first")
        if start.strength is not None and not 0.0 <= start.strength <= 1.0:
            raise _wrong("strength", "strength is a share: send 0 to 1")
        mine = self._caller.player
        named = None if start.player is None else self._parts.identity.secrets.pseudonym(self._spec.id, start.player)
        if mine is not None and named not in (None, mine):
            raise NotYours("the token is another player's", where="play", do="Leave it out", field="player")
        rate = self._parts.sample_rate()
        recorded = start.record and self._caller.may("record") and asked_for(start.episode, rate)
        recorder = SeatRecorder(self._spec, start, rate, recorded)
        self._open[place] = _Seat(recorder, self._spec.frame_stack)

    async def _observe(self, seen: Observe) -> FromGateway:
        seat = self._seat(seen.episode, seen.seat)
        spec = self._spec.seats[seen.seat]
        observation, legal = observation_of(spec, seen.observation), legal_of(spec, seen.legal)
        seat.recorder.earned(seen.reward, seen.tick)
        state, model = (None, None) if seat.held is None else (seat.held.after, seat.held.model)
        asked = InferenceRequest(seat.stacked(observation), legal, seat.recorder.start.strength, state)
        chosen = await self._parts.inference.decide(self._spec, seen.seat, asked, model)
        seat.held = chosen if chosen.after is not None else None
        self._parts.metrics.count("spar_acts_total", f'by="{"chance" if chosen.model is None else "model"}"')
        try:
            await self._keep(seat.recorder.chose(observation, legal, chosen))
        except SparringError as error:  # the game goes on; its end is answered with what went wrong
            seat.failed = error
            seat.recorder.recorded = False
        return Action(seen.episode, seen.seat, chosen.action, chosen.model, chosen.logp)

    async def _end(self, end: End) -> FromGateway:
        seat = self._seat(end.episode, end.seat)
        final = observation_of(self._spec.seats[end.seat], end.final_observation)
        chunks = seat.recorder.end(final, end.reward, end.terminated, end.outcome)
        del self._open[end.episode, end.seat]
        if seat.failed is not None:
            raise seat.failed
        return Ended(end.episode, end.seat, await self._keep(chunks))

    def _seat(self, episode: EpisodeId, seat: int) -> _Seat:
        found = self._open.get((episode, seat))
        if found is None:
            raise _wrong("episode", "that seat is not open: send start first")
        return found

    async def _keep(self, chunks: list[Chunk]) -> str:
        """Through the same checks and the same commit as an upload; the last verdict."""
        ready = [prepared(chunk, self._spec.id, self._caller, self._parts) for chunk in chunks]
        results, first = await keep(list(ready), self._parts)
        if first is not None:
            raise first
        return str(results[-1]["verdict"]) if results else ""


def _wrong(field: str, sentence: str) -> ChunkRefused:
    return ChunkRefused(sentence, where="play", do="See docs/wire.md", field=field)
