"""Every other provider, through the model classes of pydantic-ai: Gemini, Bedrock, Mistral, Groq and so on.

A model of such a provider is named with pydantic-ai's own name for it, as in `other:google:gemini-flash`. Its retries
and its instrumentation are off: the router counts tries, and the ledger is the trace. Keys that the configuration does
not name are looked up by pydantic-ai in the environment under the names its documentation gives.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from atlas.kernel.model import Delta, LoadBlob, ModelError, OnDelta, Reply, Request, StopReason, Usage
from atlas.models.estimate import estimate
from atlas.models.http import PATIENCE
from atlas.models.wire import judged, settled_stop

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings

MESSAGE_LIMIT: Final = 500
_STOPS: Final[dict[str | None, StopReason]] = {"length": "length", "content_filter": "filter", "tool_call": "tool_call"}


class PydanticAIModel:
    """Asks the models of one provider that pydantic-ai knows; `key` and `base_url` go to its provider class."""

    def __init__(
        self, load_blob: LoadBlob, *, name: str = "pydantic-ai", base_url: str = "", key: str = "", stream: bool = True
    ) -> None:
        self._load_blob = load_blob
        self._name = name
        self._given = {given: value for given, value in (("api_key", key), ("base_url", base_url)) if value}
        self._key = key
        self._stream = stream
        self._models: dict[str, Model] = {}

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The reply, with deltas on the way; raises ModelError, whose message never holds the key."""
        # A second of work, the first time: not on the loop.
        await asyncio.to_thread(_imported)
        from pydantic_ai.exceptions import AgentRunError, UserError

        try:
            model = await self._model(request.model)
        except (UserError, ImportError, ValueError, TypeError) as error:
            raise self._failure(error) from None
        try:
            response = await self._asked(model, request, on_delta)
        except (AgentRunError, UserError) as error:
            raise self._failure(error) from None
        return judged(_reply(response, request), self._name)

    async def close(self) -> None:
        """Gives back connections."""
        while self._models:
            await self._models.popitem()[1].__aexit__(None, None, None)

    async def _model(self, name: str) -> Model:
        from pydantic_ai.models import infer_model

        if name not in self._models:
            model = infer_model(name, provider_factory=self._provider)
            await model.__aenter__()
            self._models[name] = model
        return self._models[name]

    def _provider(self, name: str) -> Provider[Any]:
        from pydantic_ai.providers import infer_provider, infer_provider_class

        return infer_provider_class(name)(**self._given) if self._given else infer_provider(name)

    async def _asked(self, model: Model, request: Request, on_delta: OnDelta) -> wire.ModelResponse:
        from pydantic_ai.direct import model_request, model_request_stream

        from atlas.models.pydantic_ai_message import to_messages

        messages = await to_messages(request, self._load_blob, self._name)
        settings, wanted = _settings(request), _parameters(model, request)
        if not self._stream:
            whole = await model_request(
                model, messages, model_settings=settings, model_request_parameters=wanted, instrument=False
            )
            for part in whole.parts:
                _say(part, request, on_delta)
            return whole
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=wanted, instrument=False
        ) as stream:
            async for event in stream:
                _say(getattr(event, "part", None) or getattr(event, "delta", None), request, on_delta, event)
            return stream.get()

    def _failure(self, error: Exception) -> ModelError:
        found = _classified(error)
        text = str(error) or type(error).__name__
        if self._key:  # before the message is cut, lest a part of it stays
            text = text.replace(self._key, "***")
        hint = "Check the provider's key, its package and the name of the model." if found == "auth" else ""
        wait_s = getattr(error, "retry_after", None) or 0.0
        return ModelError(found, f"{self._name}: {text[:MESSAGE_LIMIT]}", retry_after_s=wait_s, hint=hint)


def _imported() -> None:
    import pydantic_ai.direct
    import pydantic_ai.models  # noqa: F401 - only to have them


def _settings(request: Request) -> ModelSettings:
    settings: ModelSettings = {
        "max_tokens": request.max_output_tokens,
        "max_retries": 0,
        "timeout": PATIENCE.first_byte_s,
    }
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.tools and request.tool_choice != "auto":
        settings["tool_choice"] = request.tool_choice
    return settings


def _parameters(model: Model, request: Request) -> ModelRequestParameters:
    """Tools, instructions, and the shape of the answer: enforced where that works, else asked for in words."""
    import msgspec
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=msgspec.json.decode(tool.schema),
        )
        for tool in request.tools
    ]
    parameters = ModelRequestParameters(
        function_tools=tools, instruction_parts=[InstructionPart(content=text) for text in request.system if text]
    )
    if request.output_schema is not None:
        # Several providers refuse an enforced shape beside tools.
        is_native = bool(model.profile.get("supports_json_schema_output")) and not tools
        parameters.output_mode = "native" if is_native else "prompted"
        parameters.output_object = OutputObjectDefinition(
            json_schema=msgspec.json.decode(request.output_schema), name="output"
        )
    return parameters


def _say(piece: object, request: Request, on_delta: OnDelta, event: object = None) -> None:
    """Passes on what a piece of the answer says; the end of a part says nothing new."""
    from pydantic_ai import messages as wire

    if isinstance(event, wire.PartEndEvent):
        return
    match piece:
        case wire.TextPart(content=str(text)) | wire.TextPartDelta(content_delta=str(text)) if text:
            on_delta(Delta("text", text, request.attempt, request.step))
        case wire.ThinkingPart(content=str(text)) | wire.ThinkingPartDelta(content_delta=str(text)) if text:
            on_delta(Delta("thinking", text, request.attempt, request.step))
        case wire.ToolCallPart(tool_name=name):
            on_delta(Delta("tool", name, request.attempt, request.step))
        case _:
            pass


def _reply(response: wire.ModelResponse, request: Request) -> Reply:
    from atlas.models.pydantic_ai_message import to_parts

    parts, calls = to_parts(response, request.step)
    if response.finish_reason == "error":
        raise ModelError("server", "the provider broke off its answer", usage=_usage(response, request))
    stop = settled_stop(_STOPS.get(response.finish_reason, "end"), calls)
    return Reply(parts, stop, _usage(response, request), response.model_name or request.model)


def _usage(response: wire.ModelResponse, request: Request) -> Usage:
    """As the provider counted, else estimated."""
    said = response.usage
    if not said.input_tokens and not said.output_tokens:
        return estimate(request, sum(len(str(getattr(part, "content", ""))) for part in response.parts))
    cached = min(said.input_tokens, said.cache_read_tokens)
    written = min(said.input_tokens - cached, said.cache_write_tokens)
    return Usage(said.input_tokens, said.output_tokens, cached, written)


def _classified(error: Exception) -> Any:
    """The kind of an error, by the class that pydantic-ai sorted it into; the narrowest classes come first."""
    from pydantic_ai import exceptions as known

    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (known.ModelContextWindowExceededError, "overflow"),
        ((known.ModelAuthenticationError, known.ModelNotFoundError, known.ModelQuotaExceededError), "auth"),
        (known.ModelRateLimitError, "rate_limit"),
        ((known.ModelTimeoutError, known.ModelRequestTimeout), "timeout"),
        (known.ModelConnectionError, "connection"),
        ((known.ModelServerError, known.ModelUnavailableError), "server"),
        (known.ContentFilterError, "refused"),
        (known.ModelRequestRejectedError, "invalid"),
        ((known.ModelAPIError, known.UnexpectedModelBehavior), "server"),
        # No key, no such provider, its package not installed, or it takes no such setting: another one may serve.
        ((known.UserError, ImportError, ValueError, TypeError), "auth"),
    )
    return next((kind for classes, kind in kinds if isinstance(error, classes)), "server")
