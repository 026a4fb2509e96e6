"""`@tool`: makes a typed function something that a model can call.

    @tool(effect="external_side_effect", resources=("mailbox",))
    def send(to: str, text: Annotated[str, "plain, no HTML"]) -> str:
        \"\"\"Sends a mail.\"\"\"

The function stays what it was; what Atlas needs to know hangs on it as an attribute. Whatever a model could not use
is refused here, when the file is read, and not when it is called.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar, get_args, overload

import msgspec

from atlas.kernel.batch import placeholders
from atlas.kernel.errors import Invalid
from atlas.kernel.event import EffectClass
from atlas.kernel.model import ToolSpec
from atlas.kernel.redact import check_name
from atlas.kernel.tool import SECRETS, TOOL_ATTRIBUTE, ToolDefinition
from atlas.tools.docstring import parse_docstring
from atlas.tools.schema import Signature, signature_of

P = ParamSpec("P")
R = TypeVar("R")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_CLASSES: Final[tuple[str, ...]] = get_args(EffectClass)
_MAX_TIMEOUT_S: Final = 3_600.0


class Tool(msgspec.Struct, frozen=True):
    """A tool with its function: a `LoadedTool`."""

    definition: ToolDefinition
    function: Callable[..., Any]
    signature: Signature
    probe: Callable[..., Any] | None = None
    resources: Callable[..., Any] | None = None

    def arguments(self, args: bytes) -> dict[str, Any]:
        """The function's arguments from JSON, each of the type it asks for; Invalid when they do not fit."""
        return self.signature.read(args)


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(
    *,
    effect: EffectClass = ...,
    idempotent: bool = ...,
    resources: Iterable[str] | Callable[..., Iterable[str]] | None = ...,
    timeout_s: float = ...,
    probe: Callable[..., Any] | None = ...,
    name: str | None = ...,
    secrets: Iterable[str] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: EffectClass = "reversible_write",
    idempotent: bool = False,
    resources: Iterable[str] | Callable[..., Iterable[str]] | None = None,
    timeout_s: float = 30.0,
    probe: Callable[..., Any] | None = None,
    name: str | None = None,
    secrets: Iterable[str] = (),
) -> Any:
    """Marks a function as a tool.

    Args:
        effect: what a call does to the world; policy decides by it.
        idempotent: whether doing it twice with the same effect key is the same as once.
        resources: what it touches, see `atlas.kernel.batch`; a tuple, or a function of the same arguments. Left out: all.
        timeout_s: how long a call may take.
        probe: finds out whether a call happened: takes the same arguments, returns `Done(result)` or None.
        name: as the model sees it; the function's own name when left out.
        secrets: names of secrets that a call needs; a parameter `secrets: dict[str, str]` gets their values.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.ismethod(function):
            function = _free(function)
        made = define(
            function,
            effect=effect,
            idempotent=idempotent,
            resources=resources,
            timeout_s=timeout_s,
            probe=probe,
            name=name,
            secrets=secrets,
        )
        setattr(function, TOOL_ATTRIBUTE, made)
        return function

    return decorate if function is None else decorate(function)


def define(
    function: Callable[..., Any],
    *,
    effect: EffectClass = "reversible_write",
    idempotent: bool = False,
    resources: Iterable[str] | Callable[..., Iterable[str]] | None = None,
    timeout_s: float = 30.0,
    probe: Callable[..., Any] | None = None,
    name: str | None = None,
    secrets: Iterable[str] = (),
    hidden: tuple[str, ...] = (),
) -> Tool:
    """The tool that `function` makes; Invalid, with the place, when a model could not use it.

    `hidden` parameters are not offered to the model: whoever calls the function gives them.
    """
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise Invalid(
            f"@tool marks a function, not a {type(function).__name__}",
            hint='Write @tool or @tool(effect="read_only") on the line above `def`.',
            code="tool_signature",
        )
    where = _where(function)
    named = function.__name__ if name is None else name
    _check_declared(named, effect, timeout_s, probe, where)
    needed = _secrets(function, secrets, where)
    if needed:
        hidden = (*hidden, SECRETS)
    written = parse_docstring(function.__doc__)
    signature = signature_of(function, written.parameters, where, hidden)
    declared, computed = None, None
    if callable(resources):
        computed = resources
    elif resources is not None:
        declared = _declared(resources, signature, where)
    definition = ToolDefinition(
        ToolSpec(named, written.text or named.replace("_", " "), msgspec.Raw(msgspec.json.encode(signature.schema))),
        effect,
        idempotent,
        declared,
        computes_resources=computed is not None,
        timeout_s=float(timeout_s),
        has_probe=probe is not None,
        digest=_digest(function),
        where=where,
        secrets=needed,
    )
    return Tool(definition, function, signature, probe, computed)


def _free(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the method: something can hang on it, and each thing has its own."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(**given: Any) -> Any:
            return await method(**given)

        return call_async

    @functools.wraps(method)
    def call(**given: Any) -> Any:
        return method(**given)

    return call


def _check_declared(name: str, effect: str, timeout_s: Any, probe: object, where: str) -> None:
    problem = ""
    if not _NAME.fullmatch(name):
        problem = f"{name!r} is not a name for a tool: letters, digits, _ and -, at most 64"
    elif effect not in _CLASSES:
        problem = f"unknown effect class {effect!r}; use one of {', '.join(_CLASSES)}"
    elif isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        problem = f"timeout_s of {name} is between 0 and {_MAX_TIMEOUT_S:g} seconds, not {timeout_s!r}"
    elif probe is not None and not callable(probe):
        problem = f"the probe of {name} is not a function"
    if problem:
        raise Invalid(problem, where=where, code="tool_declaration")


def _declared(resources: Iterable[str], signature: Signature, where: str) -> tuple[str, ...]:
    found = (resources,) if isinstance(resources, str) else tuple(resources)
    for resource in found:
        unknown = [one for one in placeholders(resource) if one not in signature.schema["properties"]]
        if unknown:
            raise Invalid(
                f"resource {resource!r} names {unknown[0]!r}, which is no parameter",
                where=where,
                code="tool_declaration",
            )
    return found


def _secrets(function: Callable[..., Any], names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names of the secrets that it declares and has a parameter for."""
    needed = (names,) if isinstance(names, str) else tuple(names)
    try:
        for name in needed:
            check_name(name)
    except Invalid as error:
        raise Invalid(error.message, hint=error.hint, where=where, code="tool_declaration") from None
    if needed and SECRETS not in inspect.signature(function).parameters:
        raise Invalid(
            f"{function.__name__} declares secrets and has no parameter for them",
            hint="Add the parameter `secrets: dict[str, str]`; the model does not see it.",
            where=where,
            code="tool_declaration",
        )
    return needed


def _where(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _digest(function: Callable[..., Any]) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # defined where there is no file, at a prompt for example
        return ""
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
