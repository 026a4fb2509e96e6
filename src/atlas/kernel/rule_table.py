"""The rules of all layers as a table: which of them speak about an effect, without trying each.

What a rule says about names, classes and agents depends on few values, so the rules that remain for one
combination of them are worked out once and kept. Only conditions on the arguments are tried each time, and
many patterns for the same argument are first tried together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from atlas.kernel.pattern import Segment, fits, fits_strictly, glob, parse_path, select, texts, writings
from atlas.kernel.rule import ALWAYS_OFFERED, Globs, Judging, Layer, Match, Rule, Spoke

MAX_KEPT: Final = 4096
TOGETHER: Final = 32
"""So many rules that look at the same argument are first tried as one."""

Key: TypeAlias = tuple[str, ...]
Path: TypeAlias = tuple[Segment, ...]
Holds: TypeAlias = Callable[[str, Mapping[str, Any]], bool | None]
"""Whether a CEL condition holds; None when it cannot be told. Pure, and given from outside."""


class Subject(Protocol):
    """What a rule is held against."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def effect_class(self) -> str: ...
    @property
    def args(self) -> Any: ...
    @property
    def agent(self) -> str: ...
    @property
    def principal(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def server(self) -> str: ...
    @property
    def project(self) -> str: ...


class Found(msgspec.Struct, frozen=True):
    """What rules and lists said; `replaces_default`: an owner's word stands in for the class's default."""

    spoke: tuple[Spoke, ...] = ()
    replaces_default: bool = False
    second_person: bool = False
    judges: tuple[Judging, ...] = ()


class _Test(msgspec.Struct, frozen=True):
    """What the values at a path must fit; a path that cannot be read is None."""

    path: Path | None
    patterns: tuple[str, ...]
    pattern: re.Pattern[str]


class _Entry(msgspec.Struct, frozen=True):
    """A rule in its layer, ready to be tried."""

    rule: Rule
    layer: Layer
    spoke: Spoke
    replaces: bool
    narrows: bool
    tests: tuple[_Test, ...]


class _Group(msgspec.Struct, frozen=True):
    """Narrowing rules that look at the same argument first; none holds when `any_of` does not."""

    path: Path
    any_of: re.Pattern[str]
    entries: tuple[_Entry, ...]


class _Remaining(msgspec.Struct, frozen=True):
    """What is left to try for one combination of names: `certain` speaks whatever the arguments are."""

    certain: Found
    groups: tuple[_Group, ...]
    tried: tuple[_Entry, ...]


class RuleTable:
    """The rules of some layers. What it keeps is only a memory of what it worked out."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._named: dict[str, list[_Entry]] = {}
        self._other: list[_Entry] = []
        self._lists: list[Layer] = []
        self._kept: dict[Key, _Remaining] = {}
        uses: set[str] = set()
        for layer in layers:
            if layer.allow is not None or layer.deny:
                self._lists.append(layer)
            if layer.project:
                uses.add("project")
            for rule in layer.rules:
                self._place(_entry(rule, layer))
                uses.update(part for part in ("agent", "principal") if getattr(rule.match, part) is not None)
        self._uses = uses

    def find(self, subject: Subject, holds: Holds) -> Found:
        """Everything that speaks about the subject."""
        remaining = self._remaining(subject)
        if not remaining.tried and not remaining.groups:
            return remaining.certain
        values = _Values(subject.args)
        entries = [entry for entry in remaining.tried if _holds(entry, subject, values, holds)]
        for group in remaining.groups:
            if any(map(group.any_of.match, values.writings(group.path))):
                entries += [entry for entry in group.entries if _holds(entry, subject, values, holds)]
        return _plus(remaining.certain, entries) if entries else remaining.certain

    def tries_arguments(self, subject: Subject) -> bool:
        """Whether what speaks about the subject depends on its arguments."""
        remaining = self._remaining(subject)
        return bool(remaining.tried or remaining.groups)

    def _place(self, entry: _Entry) -> None:
        names = _globs(entry.rule.match.tool)
        if names and not any("*" in name for name in names):
            for name in dict.fromkeys(names):
                self._named.setdefault(name, []).append(entry)
        else:
            self._other.append(entry)

    def _remaining(self, subject: Subject) -> _Remaining:
        key = (
            subject.kind,
            subject.name,
            subject.effect_class,
            subject.model,
            subject.server,
            subject.agent if "agent" in self._uses else "",
            subject.principal if "principal" in self._uses else "",
            subject.project if "project" in self._uses else "",
        )
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._work_out(subject)
        return kept

    def _work_out(self, subject: Subject) -> _Remaining:
        entries = [
            entry
            for entry in (*self._named.get(subject.name, ()), *self._other)
            if entry.layer.project in ("", subject.project) and names_hold(entry.rule.match, subject)
        ]
        certain = [entry for entry in entries if not entry.tests and entry.rule.match.when is None]
        lists = [layer for layer in self._lists if layer.project in ("", subject.project)]
        spoken = tuple(spoke for layer in lists for spoke in listed(layer, subject.kind, subject.name))
        groups, tried = _grouped([entry for entry in entries if entry.tests or entry.rule.match.when is not None])
        return _Remaining(_plus(Found(spoken), certain), groups, tried)


def names_hold(match: Match, subject: Subject) -> bool:
    """Whether everything a rule says about an effect holds, its arguments and condition aside."""
    kind = subject.kind
    if match.kind is not None and kind not in _words(match.kind):
        return False
    if match.effect is not None and subject.effect_class not in _words(match.effect):
        return False
    return (
        (match.tool is None or (kind in ("tool", "step") and fits(subject.name, _globs(match.tool))))
        and (match.spawn is None or (kind == "spawn" and fits(subject.name, _globs(match.spawn))))
        and (match.model is None or (kind == "model" and fits(subject.model or subject.name, _globs(match.model))))
        and (match.mcp is None or (subject.server != "" and fits(subject.server, _globs(match.mcp))))
        and (match.agent is None or fits(subject.agent, _globs(match.agent)))
        and (match.principal is None or fits(subject.principal, _globs(match.principal)))
    )


def matches(rule: Rule, subject: Subject, holds: Holds) -> bool:
    """Whether one rule speaks about an effect, tried by itself."""
    return names_hold(rule.match, subject) and _holds(
        _entry(rule, Layer("vault")), subject, _Values(subject.args), holds
    )


def variables(subject: Subject) -> dict[str, Any]:
    """What a condition can speak about."""
    return {
        "tool": subject.name if subject.kind in ("tool", "step") else "",
        "spawn": subject.name if subject.kind == "spawn" else "",
        "model": (subject.model or subject.name) if subject.kind == "model" else subject.model,
        "mcp": subject.server,
        "kind": subject.kind,
        "effect": subject.effect_class,
        "agent": subject.agent,
        "principal": subject.principal,
        "args": subject.args if isinstance(subject.args, dict) else {"value": subject.args},
    }


def listed(layer: Layer, kind: str, name: str) -> tuple[Spoke, ...]:
    """What a layer's lists of tools say: a tool that is on the denylist, or not on the allowlist, is denied.

    A denylist also holds for the steps of an agent's code; an allowlist is about tools alone.
    """
    if kind in ("tool", "step") and layer.deny and fits(name, layer.deny):
        return (Spoke(layer.name, "tools.deny", "deny", f"{name} is on the list of tools never to use"),)
    if kind == "tool" and layer.allow is not None and name not in ALWAYS_OFFERED and not fits(name, layer.allow):
        return (Spoke(layer.name, "tools.allow", "deny", f"{name} is not on the list of tools to use"),)
    return ()


class _Values:
    """The values in one call's arguments, each looked up once."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self._writings: dict[Path, list[str]] = {}
        self._variables: dict[str, Any] | None = None

    def exact(self, path: Path) -> list[str]:
        return [text for part in select(self._args, path) for text in texts(part)]

    def writings(self, path: Path) -> list[str]:
        found = self._writings.get(path)
        if found is None:
            found = self._writings[path] = writings(list(select(self._args, path)))
        return found

    def variables(self, subject: Subject) -> dict[str, Any]:
        """One mapping for all conditions on one subject."""
        if self._variables is None:
            self._variables = variables(subject)
        return self._variables


def _holds(entry: _Entry, subject: Subject, values: _Values, holds: Holds) -> bool:
    """Whether the conditions on arguments hold: for a rule that narrows also when that cannot be told."""
    for test in entry.tests:
        if entry.narrows:
            if test.path is not None and not any(map(test.pattern.match, values.writings(test.path))):
                return False
        elif test.path is None or not fits_strictly(values.exact(test.path), test.patterns):
            return False
    when = entry.rule.match.when
    if when is None:
        return True
    held = holds(when, values.variables(subject))
    return entry.narrows if held is None else held


def _entry(rule: Rule, layer: Layer) -> _Entry:
    # An owner's ALLOW speaks for the class it matches. So does an owner's ASK that names the class: a broad ASK
    # was meant to narrow, and must not lower a default of deny by accident.
    replaces = layer.is_owner and (
        rule.decision == "allow" or (rule.decision == "ask" and rule.match.effect is not None)
    )
    spoke = Spoke(layer.name, rule.id, rule.decision, rule.reason)
    tests = tuple(_test(path, _globs(patterns)) for path, patterns in rule.match.args.items())
    return _Entry(rule, layer, spoke, replaces, rule.decision != "allow", tests)


def _test(path: str, patterns: tuple[str, ...]) -> _Test:
    return _Test(parse_path(path), patterns, glob(tuple(pattern.lower() for pattern in patterns)))


def _grouped(entries: list[_Entry]) -> tuple[tuple[_Group, ...], tuple[_Entry, ...]]:
    """Rules with many patterns for the same first argument in groups; the rest to be tried one by one."""
    by_path: dict[Path, list[_Entry]] = {}
    tried: list[_Entry] = []
    for entry in entries:
        path = entry.tests[0].path if entry.tests and entry.narrows else None
        if path is None:
            tried.append(entry)
        else:
            by_path.setdefault(path, []).append(entry)
    groups: list[_Group] = []
    for path, all_of_path in by_path.items():
        for start in range(0, len(all_of_path), TOGETHER):
            together = tuple(all_of_path[start : start + TOGETHER])
            patterns = dict.fromkeys(pattern.lower() for entry in together for pattern in entry.tests[0].patterns)
            groups.append(_Group(path, glob(tuple(patterns)), together))
    return tuple(groups), tuple(tried)


def _plus(found: Found, entries: list[_Entry]) -> Found:
    return Found(
        found.spoke + tuple(entry.spoke for entry in entries),
        found.replaces_default or any(entry.replaces for entry in entries),
        found.second_person or any(entry.rule.second_person for entry in entries),
        found.judges + tuple(entry.rule.judge for entry in entries if entry.rule.judge is not None),
    )


def _globs(patterns: Globs | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else patterns or ()


def _words(words: str | tuple[str, ...]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words
