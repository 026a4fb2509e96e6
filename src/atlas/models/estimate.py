"""How many tokens something probably was, for when a provider does not say.

Rather too many than too few, because budgets are settled by it: three bytes to a token, where four are usual.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from atlas.kernel.model import Image, Message, Request, Text, Thinking, ToolCall, ToolResult, Usage

BYTES_PER_TOKEN = 3
MOST_TOKENS = 10**9
"""More than any request or answer has, and few enough that nobody's sums overflow."""


def is_plausible(usage: Usage) -> bool:
    """Whether the counts can be true; a provider that says others has told nothing."""
    counts = (usage.tokens_in, usage.tokens_out, usage.cached_in, usage.cache_write_in)
    return all(0 <= count <= MOST_TOKENS for count in counts)


def estimate(request: Request, bytes_out: int = 0) -> Usage:
    """What a request used whose provider told nothing, with the bytes of the answer that arrived."""
    size = sum(_bytes(text) for text in request.system)
    size += sum(_bytes(tool.name) + _bytes(tool.description) + len(bytes(tool.schema)) for tool in request.tools)
    size += sum(_size(message) for message in request.messages)
    return Usage(tokens_in=tokens(size), tokens_out=tokens(bytes_out), is_estimated=True)


def completed(usage: Usage, request: Request, bytes_out: int) -> Usage:
    """What a provider counted, with an estimate in place of a nought that cannot be: something was read or written."""
    if usage.tokens_in and (usage.tokens_out or not bytes_out):
        return usage
    guess = estimate(request, bytes_out)
    tokens_in, tokens_out = usage.tokens_in or guess.tokens_in, usage.tokens_out or guess.tokens_out
    return msgspec.structs.replace(usage, tokens_in=tokens_in, tokens_out=tokens_out, is_estimated=True)


def tokens(size: int) -> int:
    """The tokens that `size` bytes of text may be."""
    return -(-size // BYTES_PER_TOKEN)


def _size(message: Message) -> int:
    size = 0
    for part in message.parts:
        match part:
            case Text(text=text) | Thinking(text=text) | ToolResult(text=text):
                size += _bytes(text)
            case ToolCall():
                size += _bytes(part.name) + _bytes(part.args)
            case Image():
                size += part.tokens * BYTES_PER_TOKEN
            case _:
                assert_never(part)
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
