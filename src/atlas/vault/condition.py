"""CEL conditions of policies: checked when a file is read, compiled once, evaluated within bounds.

Types are checked beforehand, so that a misspelt name is an error of the file. Evaluating has no side effects, ends
after a bounded number of steps, and matches regular expressions in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

TEXTS: Final = ("tool", "spawn", "model", "mcp", "kind", "effect", "agent", "principal")
MAX_KEPT: Final = 10_000


class Conditions:
    """Conditions by their text. What it keeps is only a memory of what it compiled."""

    def __init__(self) -> None:
        self._environment: Any = None
        self._compiled: dict[str, Any] = {}
        self._variables: Mapping[str, Any] | None = None
        self._activation: Any = None

    def problem(self, text: str) -> str:
        """Why the text is no condition; empty when it is one."""
        try:
            kind = self._compile(text).return_type().name()
        except RuntimeError as error:
            return _shown(str(error))
        return "" if kind in ("BOOL", "DYN") else f"it is {kind.lower()}, and a condition must be true or false"

    def holds(self, text: str, variables: Mapping[str, Any]) -> bool | None:
        """Whether the condition holds; None when that cannot be told: a key that is not there, too many steps.

        The same mapping given again is taken to be unchanged: several conditions are tried on one effect.
        """
        try:
            value = self._compile(text).eval(self._activate(variables)).value()
        except RuntimeError:
            return None
        return value if isinstance(value, bool) else None

    def _activate(self, variables: Mapping[str, Any]) -> Any:
        if self._activation is None or self._variables is not variables:
            self._activation = None
            self._activation = self._make().Activation(data=dict(variables))
            self._variables = variables
        return self._activation

    def _compile(self, text: str) -> Any:
        compiled = self._compiled.get(text)
        if compiled is None:
            if len(self._compiled) >= MAX_KEPT:
                self._compiled.clear()
            compiled = self._compiled[text] = self._make().compile(text)
        return compiled

    def _make(self) -> Any:
        if self._environment is None:
            from cel_expr_python import cel  # type: ignore[import-untyped]

            types = dict.fromkeys(TEXTS, cel.Type.STRING)
            types["args"] = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
            self._environment = cel.NewEnv(variables=types)
        return self._environment


def _shown(message: str) -> str:
    """The first line of what the compiler says, without its own place names."""
    found = re.search(r"<input>:1:(\d+): ([^\n]*)", message)
    text = f"{found[2]} (column {found[1]})" if found else message.splitlines()[0] if message else "it cannot be read"
    return text.replace(" (in container '')", "")
