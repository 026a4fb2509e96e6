"""What a provider's refusal means: status, headers and body to one kind of ModelError.

Kinds, as the router acts on them: `rate_limit`, `server`, `timeout`, `connection` and `empty` pass, and are tried
again; `auth` is a provider that will not serve this key, account or model, so another one is tried; `overflow`,
`refused` and `invalid` are about the request itself and are nobody else's to answer either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from atlas.kernel.model import ModelError, ModelErrorKind, Usage

MESSAGE_LIMIT = 500

# How servers say that a request does not fit: OpenAI, Anthropic, vLLM, llama.cpp, Gemini, Groq, xAI, Mistral, Bedrock,
# Text Generation Inference, Moonshot.
_OVERFLOW = re.compile(
    r"context[_ ]length|context[_ ]window|context[_ ]size|maximum context|context limit|prompt is too long"
    r"|input is too long|maximum prompt length|reduce the length of|token count.{0,40}exceeds"
    r"|too many tokens|too large for model|request_too_large|maximum model length|model token limit"
    r"|must have less than \d+ tokens|`max_new_tokens` must be <=",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient (?:balance|credit|funds)|credit balance|billing_hard_limit", re.IGNORECASE
)
_FILTERED = re.compile(
    r"content.filter|content_policy|content management policy|(?:input|prompt) was flagged", re.IGNORECASE
)
# A key or a model that is not served, from servers that answer neither with 401 nor with 404: Gemini, Mistral,
# OpenRouter, xAI, DeepSeek, Z.ai, Groq.
_NOT_SERVED = re.compile(
    r"api key not valid|incorrect api key|not a valid model|invalid.model\b|model not exist|unknown model\b"
    r"|model_decommissioned",
    re.IGNORECASE,
)
# No tools at all, or, of OpenAI's GPT-6.1 Sol, not over chat completions: there it would have to stop reasoning.
_TOOLLESS = re.compile(
    r"does not support (?:tools|function calling)|no endpoints found that support tool use"
    r"|tool choice requires --enable-auto-tool-choice"
    r"|reasoning_effort.? does not support .?none",
    re.IGNORECASE,
)
# The server turns down what its own model wrote: Groq.
_BAD_OUTPUT = re.compile(r"tool_use_failed|json_validate_failed|output_parse_failed")

_BY_STATUS: Mapping[int, ModelErrorKind] = {
    401: "auth",
    402: "auth",
    403: "auth",
    404: "auth",  # no such model for this key, or no such address
    405: "auth",
    408: "timeout",
    409: "server",
    413: "overflow",
    425: "server",
    429: "rate_limit",
    504: "timeout",
}
_BY_TYPE: Mapping[str, ModelErrorKind] = {
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "auth",
    "not_found_error": "auth",
    "invalid_api_key": "auth",
    "model_not_found": "auth",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "overloaded_error": "server",
    "api_error": "server",
    "server_error": "server",
    "timeout_error": "timeout",
    "request_too_large": "overflow",
    "context_length_exceeded": "overflow",
    "exceed_context_size_error": "overflow",
    "invalid_request_error": "invalid",
}
_HINTS: Mapping[ModelErrorKind, str] = {
    "auth": "Check the provider's key, its address and the name of the model.",
    "rate_limit": "Wait, lower max_in_flight of the provider, or name a second model in the tier.",
    "overflow": "The request is longer than the model can read; lower the agent's context budget.",
    "refused": "The provider's filter refused the request; change what is asked.",
    "invalid": "The provider does not accept this request; the message says why.",
}
_HINT_ADDRESS = "Check the provider's base_url; where chat completions are spoken it mostly ends in /v1."
_HINT_TOOLLESS = 'Name a model that can call tools, or give the agent none with `tools: {deny: ["*"]}`.'


class Complaint(msgspec.Struct, frozen=True):
    """What an error body says, whichever of the usual shapes it has."""

    message: str = ""
    type: str = ""
    code: str = ""


def http_failure(name: str, status: int, headers: Mapping[str, str], body: bytes, now_us: int) -> ModelError:
    """The error for a reply whose status is not 200."""
    complaint = read_complaint(body)
    text = complaint.message or body[:MESSAGE_LIMIT].decode("utf-8", "replace").strip()
    if 300 <= status < 400:
        where = headers.get("Location", "elsewhere")
        return ModelError(
            "connection",
            f"{name} answered {status} and points to {where[:200]}; redirects are not followed",
            hint="Set base_url to the address it points to, if you trust it.",
        )
    kind = _kind(status, complaint, text)
    return ModelError(
        kind,
        shortened(f"{name} answered {status}: {text or 'without a reason'}"),
        retry_after_s=retry_after_s(headers, now_us),
        hint=_HINT_ADDRESS if status == 404 and not complaint.message else _hint(kind, text),
    )


def stream_failure(name: str, complaint: Complaint, usage: Usage | None) -> ModelError:
    """The error for a complaint in the middle of a stream, with what was used until then; as long as the complaint is."""
    kind = _kind(_status(complaint.code), complaint, complaint.message)
    text = complaint.message or complaint.type or "without a reason"
    return ModelError(kind, f"{name} broke off: {text}", usage=usage, hint=_hint(kind, text))


def shortened(message: str) -> str:
    """The message, or its beginning when a provider said too much."""
    return message[:MESSAGE_LIMIT]


def malformed(name: str, what: str, data: bytes, usage: Usage | None = None) -> ModelError:
    """The error for bytes that are not what the wire allows."""
    start = data[:120].decode("utf-8", "replace")
    return ModelError("server", f"{name} sent {what}: {start!r}", usage=usage)


def read_complaint(body: bytes) -> Complaint:
    """The complaint in an error body; an empty one when there is none."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Complaint()
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return Complaint()
    return complaint_from(data.get("error", data))


def complaint_from(error: Any) -> Complaint:
    """The complaint in the value of `error`."""
    match error:
        case str():
            return Complaint(error)
        case dict():
            message = error.get("message") or error.get("detail") or ""
            text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
            type_, code = (str(error.get(key) or "") for key in ("type", "code"))
            behind = _behind(error.get("metadata"))
            said = f"{text}: {behind.message}" if behind.message else text
            return Complaint(said, behind.code or behind.type or type_, code)
        case _:
            return Complaint()


def _behind(metadata: Any) -> Complaint:
    """What the server behind a router of models said: OpenRouter quotes it."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str):
        return Complaint()
    found = read_complaint(raw.encode(errors="replace"))
    return found if found.message else Complaint(raw.strip())


def retry_after_s(headers: Mapping[str, str], now_us: int) -> float:
    """The seconds a provider asks us to wait: from milliseconds, seconds or an HTTP date; 0 when it does not ask."""
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    text = headers.get("Retry-After", "")
    if not text:
        return 0.0
    if (seconds := _number(text)) is not None:
        return seconds
    until_s = _moment_s(text)
    # Against the server's own clock when it tells it: ours may be off.
    now_s = _moment_s(headers.get("Date", ""))
    return 0.0 if until_s is None else max(0.0, until_s - (now_us / 1e6 if now_s is None else now_s))


def _moment_s(text: str) -> float | None:
    """The seconds since the epoch that an HTTP date means, which is in UTC also when it does not say so."""
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _status(code: str) -> int:
    return int(code) if re.fullmatch(r"[45]\d\d", code) else 0


def _hint(kind: ModelErrorKind, text: str) -> str:
    return _HINT_TOOLLESS if kind == "auth" and _TOOLLESS.search(text) else _HINTS.get(kind, "")


def _kind(status: int, complaint: Complaint, text: str) -> ModelErrorKind:
    said = f"{complaint.type} {complaint.code} {text}"
    if status in (0, 400, 413, 422, 500) and _OVERFLOW.search(said):
        return "overflow"
    if status in (0, 400, 429) and _NO_CREDIT.search(said):
        return "auth"
    if status in (0, 400, 403) and _FILTERED.search(said):
        return "refused"
    if status in (0, 400, 422) and (_NOT_SERVED.search(said) or _TOOLLESS.search(said)):
        return "auth"
    if status in (0, 400) and _BAD_OUTPUT.search(said):
        return "server"
    if (kind := _BY_STATUS.get(status)) is not None:
        return kind
    if (kind := _BY_TYPE.get(complaint.code) or _BY_TYPE.get(complaint.type)) is not None and status in (0, 400):
        return kind
    return "invalid" if 400 <= status < 500 else "server"
