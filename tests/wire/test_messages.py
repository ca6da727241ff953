"""Messages on the play socket: golden frames and refusals."""

import json
from pathlib import Path

import pytest

from serving import decode_answer
from sparring.errors import WireError
from sparring.wire import messages as m
from sparring.wire.ids import EpisodeId, ModelId

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
E = EpisodeId("01890a5d-ac96-774b-bcce-b302099a8057")
EXAMPLES = {
    "hello": m.Hello(m.PROTOCOL, "1"),
    "start": m.Start(E, 1, "alice", 0.5),
    "observe": m.Observe(E, 1, {"observation/state": [0.5, 1.0]}, 4, -1.0, [True, False]),
    "end": m.End(E, 1, {"observation/state": [0.0, 0.0]}, 1.0, True, 1.0),
    "action": m.Action(E, 1, 3, ModelId("ab" * 32), -0.5),
    "ended": m.Ended(E, 1, "new"),
    "problem": m.Problem("observation", "no leaf 'x'", "observation/x", E),
}


def frames() -> dict[str, dict[str, str]]:
    return {
        name: {"text": str(m.encode(one, text=True)), "binary": bytes(m.encode(one, text=False)).hex()}  # type: ignore[arg-type]
        for name, one in EXAMPLES.items()
    }


def test_the_frames_of_protocol_1_never_change() -> None:
    assert json.loads(GOLDEN.read_text()) == frames(), "a changed message needs a new PROTOCOL"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_comes_back_as_it_went(name: str) -> None:
    read = decode_answer if name in ("action", "ended", "problem") else m.decode
    for text in (True, False):
        assert read(m.encode(EXAMPLES[name], text=text)) == EXAMPLES[name]


def test_a_frame_that_does_not_read_is_answered_with_a_sentence() -> None:
    with pytest.raises(WireError) as error:
        m.decode('{"type":"observe"}')
    assert str(error.value) == ("message: it does not read: Object missing required field `episode`. See docs/wire.md.")
    with pytest.raises(WireError):
        m.decode('{"type":"run","code":"1"}')
    with pytest.raises(WireError):
        m.decode("x" * (m.MAX_MESSAGE_BYTES + 1))
