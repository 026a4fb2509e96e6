"""Frames: however the bytes arrive, the messages come out whole and in order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.engine.wire import FROM_WORKER, TO_WORKER, Frames, Ping, frame
from atlas.kernel.code import Answer, Cancel, Finished, Noted, Perform, Printed
from atlas.kernel.errors import Fault

MESSAGES = st.lists(st.builds(Noted, st.text(st.characters(codec="utf-8")), st.sampled_from(["info", "error"])))


@given(MESSAGES, st.lists(st.integers(1, 50)))
def test_any_way_of_cutting_the_stream_gives_the_same_messages(messages: list[Noted], cuts: list[int]) -> None:
    stream = b"".join(frame(message) for message in messages)
    frames, found = Frames(), []
    for size in [*cuts, len(stream) + 1]:
        piece, stream = stream[:size], stream[size:]
        if piece:
            found += [FROM_WORKER.decode(body) for body in frames.feed(piece)]
    assert found == messages


def test_json_inside_a_message_passes_untouched() -> None:
    odd = b'{"a" : 1.50 , "b":"\\u00e9"}'
    (body,) = Frames().feed(frame(Finished(msgspec.Raw(odd))))
    message = FROM_WORKER.decode(body)
    assert isinstance(message, Finished)
    assert bytes(message.output) == odd


def test_both_directions_know_their_messages() -> None:
    for message in (Perform(1, "k"), Answer(2, msgspec.Raw(b"1")), Cancel("why"), Ping()):
        (body,) = Frames().feed(frame(message))
        assert type(TO_WORKER.decode(body)) is type(message)
    (body,) = Frames().feed(frame(Printed("stderr", "text")))
    assert FROM_WORKER.decode(body) == Printed("stderr", "text")


def test_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(Fault, match="1000 bytes") as caught:
        Frames(limit=999).feed((1000).to_bytes(4, "big"))
    assert caught.value.reason == "bad_frame"
