"""`WS …/play`: hello, start, observe → action, end; many episodes on one socket. Messages: wire/messages.py."""

import asyncio
import logging
import time
from collections import Counter
from typing import assert_never

import msgspec
import numpy as np
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from sparring.errors import ChunkRefused, NotYours, SparringError, WireError
from sparring.games.cutter import cut
from sparring.games.frame_stack import FrameStacks
from sparring.games.spec import GameSpec
from sparring.games.step_buffer import Behaviour, MemoryBudget, StepBuffer, layout_of
from sparring.gateway.http_errors import HOLD_S, ServerBusy, TooMany, answer, described, printable
from sparring.gateway.identity import Caller
from sparring.gateway.request_body import act_bytes, legal_of, observation_of, seat_of
from sparring.gateway.state import GatewayState
from sparring.gateway.uploads import accepted, commit
from sparring.nets.chooser import ActRequest, Decision
from sparring.wire import messages
from sparring.wire.chunk import Array, Chunk
from sparring.wire.ids import EpisodeId, PlayerId, asked_for, is_episode
from sparring.wire.messages import PROTOCOL, Action, End, Ended, FromGateway, Hello, Observe, Problem, Start

log = logging.getLogger(__name__)

MAX_SOCKETS = 1_024
MAX_TICK = (1 << 63) - 1
MAX_OPEN = 128  # seats open on one socket
SUBPROTOCOL = "spar.1"
PROTOCOL_ERROR, POLICY_VIOLATION = 1002, 1008  # WebSocket close codes
CHECK_S = 1.0  # how often a quiet socket's key or token is checked; that of another one with every message


class Play:
    """The endpoint, as an ASGI application."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket, state = WebSocket(scope, receive, send), self._state
        try:
            caller = state.admitted_caller(scope, "act")
            spec = state.spec(scope["path_params"]["game"])
            self._check_room(caller)
        except SparringError as error:
            await socket.send_denial_response(answer(error, scope["request_id"]))
            return
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", []) else None)
        state.sockets[caller.id] += 1
        conversation, broken = Conversation(state, caller, spec), False
        greet_by_s = time.monotonic() + state.config.gateway.body_deadline_s
        receiving = asyncio.ensure_future(socket.receive())
        try:
            while not broken:
                await asyncio.wait({receiving}, timeout=CHECK_S)
                if not state.identity.holds(caller):
                    await socket.close(POLICY_VIOLATION, "the key or token holds no more")
                    return
                if not conversation.greeted and time.monotonic() > greet_by_s:
                    await socket.close(POLICY_VIOLATION, "no hello came")
                    return
                if not receiving.done():
                    continue
                if (message := receiving.result())["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                reply, broken = await conversation.handle(text if text is not None else message.get("bytes") or b"")
                if reply is not None:
                    framed = messages.encode(reply, text=text is not None)
                    await (socket.send_text(framed) if isinstance(framed, str) else socket.send_bytes(framed))
                receiving = asyncio.ensure_future(socket.receive())
            await socket.close(PROTOCOL_ERROR)
        except WebSocketDisconnect:
            pass  # the usual end
        finally:
            receiving.cancel()
            state.sockets[caller.id] -= 1
            state.sockets += Counter()  # drops callers with none
            await conversation.leave()

    def _check_room(self, caller: Caller) -> None:
        """ServerBusy where this caller, or all callers together, have as many sockets as they may. A key may have half
        of all, so that no caller can take them."""
        open_now, per_player = self._state.sockets, self._state.config.gateway.sockets_per_player
        mine = per_player if caller.player else MAX_SOCKETS // 2 if caller.key else MAX_SOCKETS
        for limit, used, most in (
            ("sockets_per_player" if caller.player else "sockets_per_key", open_now[caller.id], mine),
            ("sockets", open_now.total(), MAX_SOCKETS),
        ):
            if used >= most:
                wrong = f"{most} play sockets are open"
                self._state.connections.say(limit, wrong)
                raise ServerBusy(wrong, where=limit, do="Try again later", limit=most)


class OpenSeat:
    """One seat between `start` and `end`: the frames that its model sees stacked, and its steps where they are kept.

    A step's reward comes with the next observation.
    """

    def __init__(
        self, spec: GameSpec, start: Start, sample_rate: float, *, recorded: bool, budget: MemoryBudget | None = None
    ) -> None:
        layout = layout_of(spec, start.seat)
        self.strength, self._tick = start.strength, -1
        self.style = None if start.style is msgspec.UNSET else start.style
        self.failed: SparringError | None = None  # why nothing more of it is recorded
        self.last: Decision | None = None  # a recurrent model's: the same model goes on from its state
        self._stacks = FrameStacks(layout.seat, spec.frame_stack, 1)
        self._buffer: StepBuffer | None = None
        if recorded:
            player = None if start.player is None else PlayerId(start.player)
            header = layout.header(start.episode, "play", player=player, sample_rate=sample_rate, seed=start.seed)
            self._buffer = StepBuffer(header, layout, budget)

    def seen(self, observation: dict[str, Array], reward: float, tick: int) -> dict[str, Array]:
        """The last frames with this one, as the model sees them; ChunkRefused where reward or tick cannot be. Nothing
        changes before `decided`, so that a message whose decision fails can be sent again."""
        if not self._tick < tick <= MAX_TICK:
            wrong = f"the game's clock did not rise: {tick} after {self._tick}"
            raise _wrong("tick", wrong if tick <= MAX_TICK else f"it is above {MAX_TICK}")
        self._check_reward(reward)
        stacks = self._stacks.peek({name: array[None] for name, array in observation.items()})
        return {name: array[0] for name, array in stacks.items()}

    def decided(
        self, observation: dict[str, Array], legal: Array | None, reward: float, tick: int, decision: Decision
    ) -> list[Chunk]:
        """The seat's next step, and what the one before earned; the chunks that are complete with it."""
        self._stacks.push({name: array[None] for name, array in observation.items()})
        self._earn(reward)
        self._tick = tick
        if self._buffer is None:
            return []
        by = Behaviour(decision.actor, decision.logp, decision.state_before)
        self._buffer.write(observation, decision.action, 0.0, tick=self._tick, legal=legal, by=by)
        chunks = cut(self._buffer, due=False)
        if self._buffer.lost:
            wrong = "the open seats of this player take all the memory that they may"
            self.stop_recording(ServerBusy(wrong, where="play", do="End some, then open others"))
        return chunks

    def end(self, final: dict[str, Array], message: End) -> list[Chunk]:
        """The last chunks."""
        if self._buffer is None:
            self._earn(message.reward)
            return []
        self._buffer.end(final, terminated=message.terminated, outcome=message.outcome)
        self._earn(message.reward)  # last: a message that is refused and sent again must not earn twice
        return cut(self._buffer, due=True)

    def leave(self) -> list[Chunk]:
        """The socket closed without an end: the episode is truncated, as where a client leaves one."""
        if self._buffer is None:
            return []
        self._buffer.leave()
        return cut(self._buffer, due=True)

    def stop_recording(self, error: SparringError) -> None:
        """The game goes on without being recorded; the answer to its end says why."""
        if self._buffer is not None:
            self._buffer.release(len(self._buffer.blocks))
        self.failed, self._buffer = error, None

    def _check_reward(self, reward: float) -> None:
        if not np.isfinite(reward):
            raise _wrong("reward", f"{reward} is no finite number")
        if self._tick < 0 and reward:
            raise _wrong("reward", "it was earned before the first decision")

    def _earn(self, reward: float) -> None:
        self._check_reward(reward)
        if self._buffer is not None and self._buffer.steps:
            self._buffer.earn(reward)


class Conversation:
    """One socket's state: frames in, one answer each. Knows no socket."""

    def __init__(self, state: GatewayState, caller: Caller, spec: GameSpec) -> None:
        self._state, self._caller, self._spec = state, caller, spec
        self.greeted = False
        self._open: dict[tuple[EpisodeId, int], OpenSeat] = {}
        self._memory = state.play_memory(caller)

    async def handle(self, frame: str | bytes) -> tuple[FromGateway | None, bool]:
        """The answer to a frame, if it has one, and whether the conversation is over with it."""
        episode: EpisodeId | None = None
        try:
            self._state.take_rate(self._caller.id)
            if len(frame) > (most := act_bytes(self._spec)):
                raise WireError(f"a message of {len(frame)} bytes, the limit is {most}", where="play", do="Send less")
            message = messages.decode(frame)
            episode = None if isinstance(message, Hello) else message.episode
            if not self.greeted and not isinstance(message, Hello):
                return Problem("protocol", "the first message is hello", "type", printable(episode)), True
            match message:
                case Hello():
                    return self._greet(message)
                case Start():
                    self._start(message)
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
            if isinstance(error, TooMany):
                await asyncio.sleep(min(error.retry_s, HOLD_S))
            _, said = described(error)
            return Problem(said.code, f"{said.message}. {said.do}.", said.field, printable(episode)), False

    async def leave(self) -> None:
        """Truncate every seat that was left open, and keep its steps."""
        for seat in self._open.values():
            try:
                await self._commit(seat.leave())
            except SparringError as error:
                log.warning("an open seat was not kept: %s", error)
        self._open.clear()

    def _greet(self, hello: Hello) -> tuple[FromGateway, bool]:
        if hello.protocol != PROTOCOL:
            return Problem("protocol", f"protocol {hello.protocol}, this is {PROTOCOL}", "protocol"), True
        if hello.version:
            self._spec = self._state.spec(self._spec.id, hello.version)
        self.greeted = True
        return Hello(PROTOCOL, self._spec.version), False

    def _start(self, start: Start) -> None:
        seat_of(self._spec, start.seat)
        if not is_episode(start.episode):
            raise _wrong("episode", "it is no episode's name: send a UUIDv7 in lower case")
        if (start.episode, start.seat) in self._open:
            raise _wrong("episode", "the seat is open already")
        if len(self._open) >= MAX_OPEN:
            raise _wrong("episode", f"{MAX_OPEN} seats are open: end one first")
        if start.strength is not None and not 0.0 <= start.strength <= 1.0:
            raise _wrong("strength", "strength is a share: send 0 to 1")
        mine = self._caller.player
        named = None if start.player is None else self._state.identity.secrets.pseudonym(self._spec.id, start.player)
        if mine is not None and named not in (None, mine):
            raise NotYours("the token is another player's", where="play", do="Leave it out", field="player")
        rate = self._state.sample_rate()
        recorded = start.record and self._caller.may("record") and asked_for(start.episode, rate)
        self._open[start.episode, start.seat] = OpenSeat(
            self._spec, start, rate, recorded=recorded, budget=self._memory
        )

    async def _observe(self, message: Observe) -> FromGateway:
        seat = self._seat(message.episode, message.seat)
        spec = self._spec.seats[message.seat]
        search_ms = None if message.search_ms is msgspec.UNSET else message.search_ms
        self._state.take_search(self._caller, search_ms)
        observation, legal = observation_of(spec, message.observation), legal_of(spec, message.legal)
        seen = seat.seen(observation, message.reward, message.tick)
        state, model = (None, None) if seat.last is None else (seat.last.state_after, seat.last.model)
        vary = self._spec.has_rivals
        request = ActRequest(seen, legal, seat.strength, state, search_ms, vary=vary, style=seat.style)
        decision = await self._state.inference.decide(self._spec, message.seat, request, model)
        seat.last = decision if decision.state_after is not None else None
        self._state.metrics.count_act(decision.model)
        try:
            await self._commit(seat.decided(observation, legal, message.reward, message.tick, decision))
        except SparringError as error:
            seat.stop_recording(error)
        action = np.asarray(decision.action).tolist()
        return Action(message.episode, message.seat, action, decision.model, decision.logp)

    async def _end(self, message: End) -> FromGateway:
        seat = self._seat(message.episode, message.seat)
        final = observation_of(self._spec.seats[message.seat], message.final_observation)
        chunks = seat.end(final, message)
        del self._open[message.episode, message.seat]
        if seat.failed is not None:
            raise seat.failed
        return Ended(message.episode, message.seat, await self._commit(chunks))

    def _seat(self, episode: EpisodeId, seat: int) -> OpenSeat:
        found = self._open.get((episode, seat))
        if found is None:
            raise _wrong("episode", "that seat is not open: send start first")
        return found

    async def _commit(self, chunks: list[Chunk]) -> str:
        """Through the same checks and the same commit as an upload; the last verdict."""
        ready = [accepted(chunk, self._spec.id, self._caller, self._state) for chunk in chunks]
        results, first = await commit(list(ready), self._caller, self._state)
        if first is not None:
            raise first
        return results[-1].verdict if results else ""


def _wrong(field: str, sentence: str) -> ChunkRefused:
    return ChunkRefused(sentence, where="play", do="See docs/wire.md", field=field)
