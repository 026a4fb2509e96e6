"""Refusals of real servers, in their own words, and the kinds they stand for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from atlas.kernel.model import ModelErrorKind
from atlas.models.failure import http_failure, read_complaint, retry_after_s, stream_failure

NOW_US = 1_767_225_600_000_000  # Thu, 01 Jan 2026 00:00:00 GMT


def openai(message: str, type_: str = "", code: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": type_, "param": None, "code": code}}).encode()


def anthropic(type_: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": type_, "message": message}}).encode()


def wrapped(raw: str) -> bytes:
    """As OpenRouter passes a refusal on."""
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "x"}}
    return json.dumps({"error": error}).encode()


CASES: list[tuple[int, bytes, ModelErrorKind]] = [
    (401, openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), "auth"),
    (403, anthropic("permission_error", "no access"), "auth"),
    (402, b"", "auth"),
    (404, openai("The model `x` does not exist", "invalid_request_error", "model_not_found"), "auth"),
    (404, anthropic("not_found_error", "model: x"), "auth"),
    (429, openai("Rate limit reached", "requests", "rate_limit_exceeded"), "rate_limit"),
    (429, openai("Limit 3/min. Add a payment method at https://example.org/account/billing"), "rate_limit"),
    (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), "auth"),
    (400, anthropic("invalid_request_error", "Your credit balance is too low to access the API"), "auth"),
    (500, b"oops", "server"),
    (502, b"<html>bad gateway</html>", "server"),
    (503, openai("overloaded", "server_error"), "server"),
    (400, wrapped('{"error": {"message": "prompt is too long: 9 tokens"}}'), "overflow"),
    (400, wrapped('{"error": {"message": "no", "code": "context_length_exceeded"}}'), "overflow"),
    (400, wrapped("Output blocked by content filtering policy"), "refused"),
    (429, wrapped("slow down"), "rate_limit"),
    (400, wrapped(""), "invalid"),
    (529, anthropic("overloaded_error", "Overloaded"), "server"),
    (504, b"", "timeout"),
    (408, b"", "timeout"),
    (413, anthropic("request_too_large", "Request exceeds the maximum size"), "overflow"),
    (400, openai("This model's maximum context length is 8192 tokens.", code="context_length_exceeded"), "overflow"),
    (400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), "overflow"),
    (
        400,
        anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 3"),
        "overflow",
    ),
    (400, json.dumps({"object": "error", "message": "maximum context length is 4096"}).encode(), "overflow"),
    (
        400,
        json.dumps({"error": {"code": 400, "message": "the request exceeds the available context size"}}).encode(),
        "overflow",
    ),
    (400, b'[{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum number"}}]', "overflow"),
    (500, b'{"error": "Input is too long for requested model"}', "overflow"),
    (
        400,
        openai("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),  # vLLM
        "overflow",
    ),
    (
        422,  # Text Generation Inference
        b'{"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}',
        "overflow",
    ),
    (422, b'{"error": "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000"}', "overflow"),
    (400, openai("Your request exceeded model token limit: 262144 (requested: 300000)"), "overflow"),  # Moonshot
    (400, openai("blocked", code="content_filter"), "refused"),
    (
        400,
        openai("Your prompt was flagged as potentially violating our usage policy.", code="invalid_prompt"),
        "refused",
    ),
    (400, anthropic("invalid_request_error", "Output blocked by content filtering policy"), "refused"),
    (403, openai('The model requires moderation. Your input was flagged for "violence".'), "refused"),  # OpenRouter
    (
        400,
        b'[{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}]',
        "auth",
    ),  # Gemini
    (400, openai("Invalid model: foo", "invalid_model", "1500"), "auth"),  # Mistral
    (400, openai("foo/bar is not a valid model ID"), "auth"),  # OpenRouter
    (400, openai("Model Not Exist", "invalid_request_error", "invalid_request_error"), "auth"),  # DeepSeek
    (400, openai("The model `x` is no longer supported.", "invalid_request_error", "model_decommissioned"), "auth"),
    (400, b'{"code": "invalid argument", "error": "Incorrect API key provided: xa***yz."}', "auth"),  # xAI
    (400, openai("Unknown Model, please check the model code.", code="1211"), "auth"),  # Z.ai
    (400, openai("registry.ollama.ai/library/gemma3:4b does not support tools", "api_error"), "auth"),  # Ollama
    (400, openai("Unsupported value: 'reasoning_effort' does not support 'none' with this model."), "auth"),  # GPT-6.1
    (400, openai('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), "auth"),
    (400, openai("Failed to call a function.", "invalid_request_error", "tool_use_failed"), "server"),  # Groq
    (400, openai("Failed to validate JSON.", "invalid_request_error", "json_validate_failed"), "server"),
    (400, openai("Parsing failed.", "invalid_request_error", "output_parse_failed"), "server"),
    (400, openai("Billing hard limit has been reached", code="billing_hard_limit_reached"), "auth"),
    (400, openai("Invalid 'messages[1]': model output expected", "invalid_request_error"), "invalid"),
    (400, openai("Unknown parameter: 'foo'", "invalid_request_error"), "invalid"),
    (422, b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "invalid"),
    (418, b"", "invalid"),
]


@pytest.mark.parametrize("status, body, kind", CASES)
def test_refusals_have_their_kind(status: int, body: bytes, kind: ModelErrorKind) -> None:
    error = http_failure("lab", status, {}, body, NOW_US)
    assert error.kind == kind
    assert error.reason == f"model_{kind}"
    assert str(status) in error.message


@pytest.mark.parametrize(
    "status, words",
    [
        (400, "gemma3:4b does not support tools"),  # Ollama
        (404, 'No endpoints found that support tool use. Try disabling "recall".'),  # OpenRouter
    ],
)
def test_a_model_that_takes_no_tools_is_said_to_be_one(status: int, words: str) -> None:
    error = http_failure("lab", status, {}, openai(words, "api_error"), NOW_US)
    assert words in error.message
    assert (error.kind, error.hint) == (
        "auth",
        'Name a model that can call tools, or give the agent none with `tools: {deny: ["*"]}`.',
    )


@pytest.mark.parametrize(
    "type_, code, message, kind",
    [
        ("overloaded_error", "", "Overloaded", "server"),
        ("rate_limit_error", "", "slow down", "rate_limit"),
        ("api_error", "", "internal", "server"),
        ("invalid_request_error", "", "prompt is too long: 5 tokens > 4 maximum", "overflow"),
        ("authentication_error", "", "who are you", "auth"),
        ("", "429", "slow down", "rate_limit"),
        ("", "502", "upstream", "server"),
        ("", "", "", "server"),
    ],
)
def test_complaints_inside_a_stream_have_their_kind(type_: str, code: str, message: str, kind: str) -> None:
    complaint = read_complaint(json.dumps({"error": {"type": type_, "code": code, "message": message}}).encode())
    assert stream_failure("lab", complaint, None).kind == kind


def test_a_page_that_no_provider_wrote_is_a_matter_of_the_address() -> None:
    assert "/v1" in http_failure("lab", 404, {}, b"404 page not found", NOW_US).hint
    assert "name of the model" in http_failure("lab", 404, {}, openai("no such model", "not_found"), NOW_US).hint


def test_redirect_is_not_followed_and_says_where_it_leads() -> None:
    error = http_failure("lab", 307, {"Location": "https://elsewhere.example/v1"}, b"", NOW_US)
    assert error.kind == "connection"
    assert "elsewhere.example" in error.message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"7", b'"text"', b'{"error": 7}', b"\xff\xfe", b'{"error": {}}']
)
def test_no_error_body_whatsoever_breaks_the_reading(body: bytes) -> None:
    assert http_failure("lab", 500, {}, body, NOW_US).kind == "server"


def test_what_stands_behind_a_refusal_that_was_passed_on_is_said_and_bounded() -> None:
    error = http_failure("lab", 400, {}, wrapped('{"error": {"message": "Keep reasoning details."}}'), NOW_US)
    assert error.message == "lab answered 400: Provider returned error: Keep reasoning details."
    assert len(http_failure("lab", 400, {}, wrapped("x" * 9_000), NOW_US).message) == 500
    nested = '{"error": {"metadata": {"raw": 7}, "message": "odd"}}'
    assert "odd" in http_failure("lab", 400, {}, wrapped(nested), NOW_US).message


def test_message_is_bounded() -> None:
    assert len(http_failure("lab", 500, {}, b"x" * 100_000, NOW_US).message) < 600


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, 0.0),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "inf"}, 0.0),
        ({"Retry-After": "nan"}, 0.0),
        ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:12 GMT"}, 12.0),
        ({"Retry-After": "Wed, 31 Dec 2025 23:59:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 01 Jan 2026 01:00:12 GMT", "Date": "Thu, 01 Jan 2026 01:00:00 GMT"}, 12.0),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:12 GMT", "Date": "today"}, 12.0),
        ({"Retry-After": "Thu, 99 Jan 2026 00:00:12 GMT"}, 0.0),
    ],
)
def test_time_to_wait_is_read_from_seconds_and_from_dates(headers: Mapping[str, str], seconds: float) -> None:
    assert retry_after_s(headers, NOW_US) == seconds


@pytest.mark.parametrize("zone", ["", " -0000"])
def test_a_date_without_a_zone_is_in_utc_wherever_this_machine_is(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        assert retry_after_s({"Retry-After": f"Thu, 01 Jan 2026 00:00:12{zone}"}, NOW_US) == 12.0
    finally:
        monkeypatch.undo()
        time.tzset()
