"""Policies as files: `policy:` of atlas.config.yaml, policy.yaml of the vault and of each project.

Read strictly, with every problem and its line; a rule's examples are tried while reading, and a wrong one refuses the
file. What cannot be read is never taken for a policy that says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from atlas.kernel.config import Config
from atlas.kernel.contract import AgentFile, Finding, Part, Tools
from atlas.kernel.errors import Invalid, PolicyRefused, Problem
from atlas.kernel.mandate import Mandate, MandateFile
from atlas.kernel.pattern import parse_path
from atlas.kernel.policy import Policy, Proposal, policy_of
from atlas.kernel.rule import Case, Globs, Layer, Match, PolicyPart, Rule
from atlas.kernel.rule_table import Holds, matches
from atlas.vault.condition import Conditions
from atlas.vault.load import load
from atlas.vault.source import MAX_BYTES
from atlas.vault.zone import zone_named

CONFIG_FILE = "atlas.config.yaml"
POLICY_FILE = "policy.yaml"
MANDATE_FILE = "mandates.yaml"
CONTRACT_FILE = "agent.yaml"

P = TypeVar("P", bound=Part)
Version: TypeAlias = tuple[str, int, int, int] | None
"""Which version of a file there is; None: no file."""
Stamp: TypeAlias = tuple[Version, ...]
"""The versions of several files: another stamp, another policy."""


class PolicyFiles:
    """The policy files of one vault. Holds no state but compiled conditions: every call reads what is there now."""

    def __init__(self, root: Path, conditions: Conditions) -> None:
        self.root = root
        self._place = str(root)
        self._conditions = conditions

    @property
    def holds(self) -> Holds:
        """Evaluates the conditions of these policies."""
        return self._conditions.holds

    def stamp(self) -> Stamp:
        """Changes whenever a policy file is written, made or removed."""
        # Asked before every effect, so with plain texts: paths as objects would be most of the cost.
        root = self._place
        found = [_version(f"{root}/{CONFIG_FILE}"), _version(f"{root}/{POLICY_FILE}")]
        found += [_version(f"{root}/projects/{name}/{POLICY_FILE}") for name in _names(f"{root}/projects")]
        return tuple(found)

    def policy(self) -> Policy:
        """Every layer that is written in files; PolicyRefused when one of them cannot be read."""
        return policy_of(self._all(lambda: list(self._layers())))

    def tools_stamp(self, agent: str) -> Stamp:
        """Changes whenever the agent's contract is written, made or removed."""
        return (_version(f"{self._place}/agents/{_safe(agent)}/{CONTRACT_FILE}"),)

    def tools(self, agent: str) -> Tools | None:
        """The lists of tools in the agent's contract as it is now; None when there is no such agent."""
        path = self._contract(agent)
        return self._all(lambda: found.agent.usable_tools if (found := _read(path, AgentFile)) is not None else None)

    def mandates_stamp(self, agent: str) -> Stamp:
        """Changes whenever a mandate that the agent may use is written or removed."""
        own = _version(f"{self._place}/agents/{_safe(agent)}/{MANDATE_FILE}")
        return own, _version(f"{self._place}/{MANDATE_FILE}")

    def mandates(self, agent: str) -> tuple[Mandate, ...]:
        """The mandates that runs of the agent may use, its own first; PolicyRefused when a file cannot be read."""
        return self._all(lambda: tuple(self._mandates(agent)))

    def all_mandates(self) -> dict[str, Mandate]:
        """Every mandate of the vault by the name it is revoked by; PolicyRefused when a file cannot be read."""
        agents = [path.name for path in _folders(self.root / "agents")]
        found = self.mandates("")
        own = (mandate for agent in agents for mandate in self.mandates(agent) if mandate.id.startswith(f"{agent}/"))
        return {mandate.id: mandate for mandate in (*found, *own)}

    def problems(self) -> list[Problem]:
        """Everything that is wrong with any policy, mandate or contract of the vault."""
        found: list[Problem] = []
        for read in self._readers():
            try:
                read()
            except Invalid as error:
                found += error.problems
        return found

    def files(self) -> list[Path]:
        """The policy and mandate files that are there."""
        agents = [path / MANDATE_FILE for path in _folders(self.root / "agents")]
        places = [self.root / CONFIG_FILE, self.root / POLICY_FILE, *self._projects().values()]
        return [path for path in (*places, self.root / MANDATE_FILE, *agents) if path.exists()]

    def _layers(self) -> Iterator[Layer]:
        fleet = self._fleet()
        if fleet is not None:
            yield _layer("fleet", fleet.policy, is_owner=True)
        vault = _read(self.root / POLICY_FILE, PolicyPart, self._rules(is_owner=True))
        if vault is not None:
            yield _layer("vault", vault, is_owner=True)
        for project, path in self._projects().items():
            part = _read(path, PolicyPart, self._rules(is_owner=False))
            if part is not None:
                yield _layer("project", part, is_owner=False, project=project)

    def _readers(self) -> Iterator[Callable[[], object]]:
        yield self._fleet
        yield lambda: _read(self.root / POLICY_FILE, PolicyPart, self._rules(is_owner=True))
        for place in self._projects().values():
            yield lambda path=place: _read(path, PolicyPart, self._rules(is_owner=False))  # type: ignore[misc]
        mandates = [self.root / MANDATE_FILE, *(path / MANDATE_FILE for path in _folders(self.root / "agents"))]
        for place in mandates:
            yield lambda path=place: _read(path, MandateFile, _mandate_rules)  # type: ignore[misc]
        for folder in _folders(self.root / "agents"):
            yield lambda path=folder / CONTRACT_FILE: _read(path, AgentFile, AgentFile.findings)  # type: ignore[misc]

    def _fleet(self) -> Config | None:
        inner = self._rules(is_owner=True)

        def rules(config: Config) -> Iterator[Finding]:
            for found in inner(config.policy):
                also = tuple(("policy", *path) for path in found.also)
                yield msgspec.structs.replace(found, path=("policy", *found.path), also=also)

        return _read(self.root / CONFIG_FILE, Config, rules)

    def _rules(self, *, is_owner: bool) -> Callable[[PolicyPart], Iterator[Finding]]:
        def rules(part: PolicyPart) -> Iterator[Finding]:
            yield from part.findings(is_owner=is_owner)
            for index, rule in enumerate(part.rules):
                for found in _rule_findings(rule, self._conditions):
                    yield msgspec.structs.replace(found, path=("rules", index, *found.path))

        return rules

    def _projects(self) -> dict[str, Path]:
        return {folder.name: folder / POLICY_FILE for folder in _folders(self.root / "projects")}

    def _contract(self, agent: str) -> Path:
        return self.root / "agents" / _safe(agent) / CONTRACT_FILE

    def _mandate_files(self, agent: str) -> list[Path]:
        return [self.root / "agents" / _safe(agent) / MANDATE_FILE, self.root / MANDATE_FILE]

    def _mandates(self, agent: str) -> Iterator[Mandate]:
        own, shared = (_read(path, MandateFile, _mandate_rules) for path in self._mandate_files(agent))
        for mandate in own.mandates if own is not None else ():
            # Its meter is its own, whatever mandates of other agents are called.
            yield msgspec.structs.replace(mandate, id=f"{agent}/{mandate.id}", agents=(agent,))
        yield from shared.mandates if shared is not None else ()

    def _all(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except Invalid as error:
            raise unreadable(error) from error


T = TypeVar("T")


def unreadable(error: Invalid) -> PolicyRefused:
    """The refusal of everything while a policy cannot be read."""
    return PolicyRefused(
        f"the policy cannot be read, so nothing is allowed: {error.message}",
        hint="Fix the file; 'atlas policy check' lists every problem.",
        where=error.where,
        code="policy_unreadable",
    )


def example_of(rule: Rule, case: Case) -> Proposal:
    """The proposal that an example describes: what it leaves out is as the rule wants it."""
    match = rule.match
    kind = case.kind or _kind_of(case, match)
    names = {"spawn": (case.spawn, match.spawn), "model": (case.model, match.model)}
    name, wanted = names.get(kind, (case.tool, match.tool))
    effects = match.effect if isinstance(match.effect, tuple) else (match.effect or "reversible_write",)
    return Proposal(
        kind=kind,
        name=name or _fitting(wanted) or "example",
        effect_class=case.effect or effects[0],
        args=case.args,
        agent=case.agent or _fitting(match.agent) or "agent",
        principal=case.principal or _fitting(match.principal) or "owner",
        model=case.model or _fitting(match.model),
        server=case.mcp or _fitting(match.mcp),
    )


def _rule_findings(rule: Rule, conditions: Conditions) -> Iterator[Finding]:
    is_sound = True
    for path, match in _matches_of(rule):
        for found in _match_findings(match, conditions):
            is_sound = False
            yield msgspec.structs.replace(found, path=(*path, *found.path))
    if is_sound:
        yield from _example_findings(rule, conditions.holds)


def _matches_of(rule: Rule) -> Iterator[tuple[tuple[str | int, ...], Match]]:
    yield ("match",), rule.match
    if rule.judge is not None:
        for index, match in enumerate(rule.judge.block):
            yield ("judge", "block", index), match
        for index, match in enumerate(rule.judge.escalate):
            yield ("judge", "escalate", index), match


def _match_findings(match: Match, conditions: Conditions) -> Iterator[Finding]:
    for path in match.args:
        if parse_path(path) is None:
            yield Finding(("args", path), "bad_path", f"{path} is not a path", "write a key, $.key or $.list[*].key")
    if match.when is not None and (problem := conditions.problem(match.when)):
        yield Finding(("when",), "bad_condition", f"not a CEL condition: {problem}", "for example: args.amount > 100")
    named = [name for name in ("tool", "spawn", "model") if getattr(match, name) is not None]
    if len(named) > 1:
        message = f"nothing is a {named[0]} and a {named[1]} at once: this rule can never match"
        yield Finding((named[1],), "never_matches", message, "write two rules")


def _example_findings(rule: Rule, holds: Holds) -> Iterator[Finding]:
    for side, is_wanted in (("match", True), ("not_match", False)):
        cases: tuple[Case, ...] = rule.examples.match if is_wanted else rule.examples.not_match
        for index, case in enumerate(cases):
            if matches(rule, example_of(rule, case), holds) != is_wanted:
                message = f"rule {rule.id} {'does not match' if is_wanted else 'matches'} this example"
                hint = "correct the rule or the example"
                yield Finding(("examples", side, index), "wrong_example", message, hint, also=(("match",),))


def _mandate_rules(file: MandateFile) -> Iterator[Finding]:
    return file.findings(zone_named)


def _kind_of(case: Case, match: Match) -> str:
    if case.tool or case.spawn or case.model:
        return "tool" if case.tool else "spawn" if case.spawn else "model"
    if match.kind is not None:
        return match.kind if isinstance(match.kind, str) else match.kind[0]
    return "spawn" if match.spawn is not None else "model" if match.model is not None else "tool"


def _fitting(patterns: Globs | None) -> str:
    first = patterns if isinstance(patterns, str) else patterns[0] if patterns else ""
    return first.replace("*", "x")


def _layer(name: str, part: PolicyPart, *, is_owner: bool, project: str = "") -> Layer:
    return Layer(name, is_owner, part.rules, part.tools.allow, part.tools.deny, project)


def _read(path: Path, kind: type[P], rules: Callable[[P], Iterator[Finding]] | None = None) -> P | None:
    """The file's content, None when there is none, Invalid with every problem when it cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise Invalid(message, problems=(Problem("unreadable", message, str(path)),), code="unreadable") from error
    return load(data, kind, path=str(path), rules=rules)


def _version(path: str) -> Version:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return path, -1, -1, -1  # there, but not to be looked at: reading it will say so
    return path, status.st_mtime_ns, status.st_size, status.st_ino


def _names(place: str) -> list[str]:
    """What lies in a folder; a folder that cannot be looked at is one that reading will complain about."""
    try:
        return sorted(os.listdir(place))
    except OSError:
        return []


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        message = f"the folder cannot be read: {error.strerror}"
        raise Invalid(message, problems=(Problem("unreadable", message, str(place)),), code="unreadable") from error


def _safe(name: str) -> str:
    """A name that leads to no other folder; one that would, leads nowhere."""
    return name if name and "/" not in name and "\0" not in name and not name.startswith(".") else "\uffff"
