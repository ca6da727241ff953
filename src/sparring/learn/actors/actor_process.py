"""An actor's process: `python -m sparring.learn.actors.actor_process`, its part as a line of JSON on standard input.

It plays with the newest weights of the board, puts what it played into its ring, and waits where that is full. The
end of standard input says that the learner is gone or wants it to stop: it ends at once, whatever it is doing. A
version on a line of it asks for the actor as it was before it played that version; the answer goes to standard output.
No torch here: it starts in a fraction of a second and stays small.
"""

import os
import struct
import sys
import threading

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.learn.actors.actor_spec import ActorSpec, read_actor_spec
from sparring.learn.actors.block_player import BlockPlayer
from sparring.learn.actors.cpu_yield import wait_for_a_turn
from sparring.learn.actors.shared_weights import NONE, SharedWeights, WeightsSnapshot
from sparring.learn.actors.wakeup import Wakeup
from sparring.nets.onnx_forward import without_torch
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
from sparring.wire.tree import pack, unpack

PATIENCE_S = 3600.0  # of one sleep; the bell and the tether end it, not the clock
ANSWER = struct.Struct("<qq")  # before a saved actor: its version and length


class SavedState:
    """The actor as it was before the rollout under way: the main thread keeps it, the tether's thread hands it out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version, self._state = NONE, b""

    def keep(self, version: int, state: bytes) -> None:
        with self._changed:
            self._version, self._state = version, state
            self._changed.notify_all()

    def before(self, version: int) -> tuple[int, bytes]:
        """Waits for that version or a later one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version >= version)
            return self._version, self._state


class ActorRunner:
    """An actor that follows the board."""

    def __init__(self, part: ActorSpec, board: SharedWeights, bell: Wakeup) -> None:
        self.part, self.board, self.bell = part, board, bell
        self.actor: Actor | None = None
        self._partners: Opponents | None = None
        self._known: dict[int, int] = {}  # past selves: place → stamp
        self.version = NONE
        self.epsilon = 0.0
        self.estimates = part.open_estimates()

    def follow(self) -> Actor:
        """The actor with the newest weights; the first are waited for."""
        while (self.actor is None or self.board.version > self.version) and (found := self._newest()) is not None:
            self._take(found)
        assert self.actor is not None
        return self.actor

    def _newest(self) -> WeightsSnapshot | None:
        self.board.wait_for(0, self.bell, PATIENCE_S)
        return self.board.newest()

    def _take(self, edition: WeightsSnapshot) -> None:
        if self.actor is None:
            self.actor, self._partners = self.part.open_actor(edition.weights, self.estimates)
            if self.part.state:
                self.actor.load(unpack(self.part.state) | {"past": []})
        self.actor.use(without_torch(self.part.network, edition.weights), edition.version)
        self.version = edition.version
        self.epsilon = edition.epsilon if self.part.epsilon is None else self.part.epsilon
        assert self._partners is not None
        for place, weights in self.board.news(self._known).items():
            self._partners.put(place, weights)


def tethered(kept: SavedState) -> ActorSpec:
    """The part from standard input, whose end ends this process from now on."""
    lines = read_lines()
    told = first_line(lines)
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a game prints is no answer

    def answer(line: bytes) -> None:
        version, state = kept.before(int(line))
        with open(answers, "wb", closefd=False) as out:
            out.write(ANSWER.pack(version, len(state)) + state)

    end_with_parent(lines, on_line=answer)
    return read_actor_spec(told)


def play_rollouts(part: ActorSpec, player: ActorRunner, kept: SavedState) -> None:
    """One rollout after another, each with the newest weights; in step: one for each version."""
    out = part.open_rollouts(part.ring)
    while not player.bell.gone:
        if not out.ring.wait_for_room(player.bell, PATIENCE_S, part.lane):
            continue
        if part.in_step and not player.board.wait_for(player.version + 1, player.bell, PATIENCE_S):
            continue
        actor = player.follow()
        if part.in_step:
            kept.keep(player.version, pack(actor.save() | {"past": []}))  # the board has the past selves
        out.play(actor, player.version, part.lane)
        player.bell.ring()


def play_steps(part: ActorSpec, player: ActorRunner) -> None:
    """One block of steps after another, each with the newest weights; the learner does not wait for any of them."""
    wait_for_a_turn()
    out, playing = part.open_blocks(part.ring), BlockPlayer(part, player.estimates)
    while not player.bell.gone:
        if not out.ring.wait_for_room(player.bell, PATIENCE_S):
            continue
        actor = player.follow()
        playing.play(actor, out, player.epsilon, player.version)
        player.bell.ring()


def main() -> None:
    """Play until the end of standard input."""
    kept = SavedState()
    part = tethered(kept)
    player = ActorRunner(part, part.open_board(part.board), Wakeup.inherited(part.bell))
    if part.feeds == "rollouts":
        play_rollouts(part, player, kept)
    else:
        play_steps(part, player)


if __name__ == "__main__":
    main()
