"""Events round-trip, and bodies of every released version can still be read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from atlas.kernel import event as module
from atlas.kernel.errors import AtlasError, ErrorRecord, Fault, from_record
from atlas.kernel.event import SCHEMA_VERSION, Body, Draft, decode_body, draft
from atlas.kernel.ident import RUN, new_id
from atlas.kernel.run import TRANSITIONS, transition

RELEASED = Path(__file__).parents[2] / "fixtures" / "events"


@pytest.mark.parametrize("path", sorted(RELEASED.glob("v*.json")), ids=lambda path: path.stem)
def test_bodies_of_every_released_version_can_be_read(path: Path) -> None:
    version = int(path.stem[1:])
    for kind, body in json.loads(path.read_text()).items():
        decoded = decode_body(kind, version, json.dumps(body).encode())
        assert draft(decoded, 1, "owner").kind == kind


def test_the_newest_fixture_covers_every_kind_of_this_version() -> None:
    written = json.loads((RELEASED / f"v{SCHEMA_VERSION}.json").read_text())
    assert set(written) == set(module._KINDS)


def test_an_event_from_the_future_is_refused_clearly() -> None:
    with pytest.raises(Fault, match="newer than this Atlas"):
        decode_body("run.ended", SCHEMA_VERSION + 1, b"{}")
    with pytest.raises(Fault, match="newer than this Atlas"):
        decode_body("run.exploded", 1, b"{}")


def test_a_damaged_body_is_a_clear_error() -> None:
    with pytest.raises(Fault, match="cannot be read"):
        decode_body("run.ended", 1, b'{"state": 3}')


def test_a_body_is_kept_as_written() -> None:
    body: Body = module.Logged("straße", "info")
    made = draft(body, 5, "owner")
    assert isinstance(made, Draft)
    assert decode_body(made.kind, made.version, made.body) == body
    assert msgspec.json.decode(made.body)["message"] == "straße"


def test_ids_sort_by_time_and_are_uuid7() -> None:
    ids = [new_id(RUN, 1_700_000_000_000_000 + step * 250, bytes(10)) for step in range(50)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 50
    assert all(one[4 + 12] == "7" and one[4 + 16] in "89ab" for one in ids)


def test_transitions_are_closed() -> None:
    for old, targets in TRANSITIONS.items():
        for new in TRANSITIONS:
            if new in targets or new == old:
                assert transition(old, new) == new
            else:
                with pytest.raises(Fault):
                    transition(old, new)


def test_every_error_survives_as_a_record() -> None:
    pending = list(AtlasError.__subclasses__())
    seen = []
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__module__ != AtlasError.__module__:
            continue
        error = from_record(cls("what", hint="do this", where="a:1:2").record())
        assert type(error) is cls
        assert (error.message, error.hint, error.where) == ("what", "do this", "a:1:2")
        seen.append(cls.code)
    assert len(seen) == len(set(seen)) <= 25
    unknown = from_record(ErrorRecord("my_code", "mine"))
    assert unknown.record().code == "my_code"
