"""A value is found in every form in which it usually travels, whole or in pieces, and nothing else is touched."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.errors import ErrorRecord, Invalid
from atlas.kernel.redact import Redactor, check_name, check_value, forms_of

VALUE = 'pa/ss+w"ö\\rd=1'
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=6, max_size=40).filter(
    lambda text: len(text.strip()) >= 6
)


def redactor(value: str = VALUE) -> Redactor:
    return Redactor([("KEY", value)])


FORMS = {
    "plain": VALUE,
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "base64 second place": base64.b64encode(b"a" + VALUE.encode() + b"zz").decode(),
    "base64 third place": base64.b64encode(b"ab" + VALUE.encode() + b"z").decode(),
    "base64 of a header": base64.b64encode(b"user:" + VALUE.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(VALUE.encode()).decode(),
    "hex": VALUE.encode().hex(),
    "HEX": VALUE.encode().hex().upper(),
    "url": quote(VALUE, safe=""),
    "url path": quote(VALUE),
    "url form": quote_plus(VALUE),
    "url lower case": quote(VALUE, safe="").lower(),
    "json": json.dumps(VALUE),
    "json utf-8": json.dumps(VALUE, ensure_ascii=False),
    "json in json": json.dumps(json.dumps({"k": VALUE})),
    "json in json in json": json.dumps(json.dumps(json.dumps([VALUE]))),
    "json with escaped slashes": json.dumps(VALUE).replace("/", "\\/"),
    "python": repr(VALUE),
    "python bytes": repr(VALUE.encode()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_each_form_is_replaced_by_the_name(form: str) -> None:
    clean = redactor().text(f"before {form} after")
    assert "[secret:KEY]" in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert not redactor().find(clean.encode())


@given(VALUES, st.text(max_size=20), st.text(max_size=20))
def test_no_form_survives_in_any_surroundings(value: str, before: str, after: str) -> None:
    known = redactor(value)
    for form in forms_of(value):
        assert form not in known.text(before + form + after)


@given(VALUES, st.text(max_size=30), st.text(max_size=30), st.lists(st.integers(0, 100), max_size=6))
def test_a_value_split_over_pieces_is_found(value: str, before: str, after: str, cuts: list[int]) -> None:
    known = redactor(value)
    text = before + value + after
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    stream = known.stream()
    passed = [stream.feed(text[start:end]) for start, end in pairwise(places)]
    assert value not in "".join([*passed, stream.end()])


@given(st.text(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_a_stream_loses_and_reorders_nothing(text: str, cuts: list[int]) -> None:
    stream = redactor("a value that is not there").stream()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    passed = [stream.feed(text[start:end]) for start, end in pairwise(places)]
    assert "".join([*passed, stream.end()]) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES, JSON, st.booleans())
def test_json_stays_json_and_loses_only_the_value(value: str, other: object, is_ascii: bool) -> None:
    known = redactor(value)
    raw = json.dumps({"secret": f"<{value}>", "other": other, value: 1}, ensure_ascii=is_ascii).encode()
    read = json.loads(known.json(raw))
    assert read["secret"] == "<[secret:KEY]>"
    assert read["[secret:KEY]"] == 1
    untouched = json.dumps(other, ensure_ascii=is_ascii).encode()
    if not known.find(untouched):
        assert known.json(untouched) == untouched


def test_a_number_that_holds_a_value_becomes_text() -> None:
    known = redactor("12345678")
    assert known.json(b'{"pin": 12345678, "n": 1234}') == b'{"pin": "[secret:KEY]", "n": 1234}'
    assert known.value({"pin": 12345678, "n": 1.5}) == {"pin": "[secret:KEY]", "n": 1.5}


def test_an_escape_neither_hides_nor_makes_a_value() -> None:
    known = redactor("nabcdef")
    assert known.json(b'["\\u006eabcdef"]') == b'["[secret:KEY]"]'
    assert known.json(b'["line\\nabcdef"]') == b'["line\\nabcdef"]'


def test_pieces_of_a_value_at_the_ends_of_a_shortened_text_are_taken_out() -> None:
    known = redactor("correct-horse-battery")
    long = "x" * 500
    assert known.cut(f"{long}correct-ho") == f"{long}[secret:KEY]"
    assert known.cut(f"e-battery{long}") == f"[secret:KEY]{long}"
    assert known.cut(f"{long}corr") == f"{long}corr"


def test_lines_of_a_key_are_found_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"
    known = redactor(key)
    assert known.text("second: AQEFAASCBKcwggSjAgEAAoIB.") == "second: [secret:KEY]."
    assert known.text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


def test_the_longest_of_two_values_wins() -> None:
    known = Redactor([("SHORT", "abcdef"), ("LONG", "abcdefghij")])
    assert known.text("abcdefghij abcdef") == "[secret:LONG] [secret:SHORT]"


def test_errors_are_redacted_in_every_field() -> None:
    record = redactor("s3cr3t-value").record(
        ErrorRecord("x", "m s3cr3t-value", "h s3cr3t-value", "s3cr3t-value:1", "d s3cr3t-value")
    )
    assert "s3cr3t-value" not in repr(record)


def test_without_secrets_everything_passes_untouched() -> None:
    nobody = Redactor()
    raw = b'{"a": "\\u0041"}'
    assert nobody.is_idle
    assert nobody.json(raw) is raw
    assert nobody.text("text") == "text"
    assert nobody.stream().feed("text") == "text"


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    assert redactor("s3cr3t-value").data(b"\xff\x00s3cr3t-value\xfe") == b"\xff\x00[secret:KEY]\xfe"


def test_short_values_are_refused_with_a_reason_and_not_shown() -> None:
    with pytest.raises(Invalid) as caught:
        check_value("PIN", "12ab5")
    assert caught.value.reason == "secret_too_short"
    assert "12ab5" not in caught.value.message + caught.value.hint
    assert Redactor([("PIN", "12ab5")]).is_idle


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "ä", "x" * 129, "a\n"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(Invalid):
        check_name(name)
