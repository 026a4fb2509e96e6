"""Events: however the network cuts the bytes, the same data comes out, each piece as soon as it is whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.models.sse import Events

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
DATA = st.lists(LINE, min_size=1, max_size=3)


def render(events: list[list[str]], end: str) -> bytes:
    """The events with comments and names between their data lines."""
    lines = []
    for event in events:
        lines += [": a comment", "event: message", *(f"data: {line}" for line in event), "id: 7", ""]
    return "".join(line + end for line in lines).encode()


@given(st.lists(DATA, max_size=4), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 9), max_size=60))
def test_any_way_of_cutting_the_stream_gives_the_same_events(
    events: list[list[str]], end: str, cuts: list[int]
) -> None:
    stream, reader, found = render(events, end), Events(), []
    for size in [*cuts, len(stream) + 1]:
        piece, stream = stream[:size], stream[size:]
        if piece:
            found += reader.feed(piece)
    found += reader.close()
    assert found == ["\n".join(event).encode() for event in events]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_comes_out_with_its_last_byte_and_not_later(end: bytes) -> None:
    reader = Events()
    stream = b"data: one" + end + end
    early = [reader.feed(stream[index : index + 1]) for index in range(len(stream))]
    # The second half of a final CRLF is not waited for: the first half has ended the line.
    assert [event for events in early for event in events] == [b"one"]
    assert early[-len(end)] == [b"one"]


def test_space_after_the_colon_is_optional_and_only_one_is_taken() -> None:
    assert Events().feed(b"data:a\n\ndata: b\n\ndata:  c\n\n") == [b"a", b"b", b" c"]


def test_mark_at_the_start_of_the_stream_is_no_part_of_the_first_line() -> None:
    assert Events().feed(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]


def test_events_without_data_say_nothing() -> None:
    assert Events().feed(b"event: ping\n\n: hello\n\n\n\nretry: 5\n\n") == []


def test_last_event_may_lack_its_empty_line() -> None:
    reader = Events()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.close() == [b"[DONE]"]
    assert reader.close() == []
