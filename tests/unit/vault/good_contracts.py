"""Good contracts by chance: every key that a contract can have, as lines that know what they are.

A `Line` knows its key, the kind of its value, where it stands and what depends on it, so that a test can break one thing
and say what must be complained about. Nothing here uses the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Leaf:
    """A value on one line and what kind of value it is."""

    kind: str
    text: str
    protected: bool = False  # another line depends on it


@dataclass(frozen=True)
class Line:
    """One line of a contract; `parent` is the index of the line it stands under."""

    indent: int
    key: str
    value: str
    kind: str
    region: str
    parent: int
    protected: bool = False

    @property
    def text(self) -> str:
        head = f"{self.key}:" if self.key else "-"
        return " " * self.indent + (f"{head} {self.value}" if self.value else head)


Tree = dict[str, Any]

WORDS = ["alpha", "beta", "gamma", "delta", "weather", "report", "mail", "index", "search", "note", "river", "stone"]


def quoted(rng: Random, kind: str, text: str) -> Leaf:
    return Leaf(kind, rng.choice([text, f'"{text}"', f"'{text}'"]))


def name(rng: Random) -> Leaf:
    return quoted(rng, "name", rng.choice(WORDS) + rng.choice(["", "-2", "_x", "9"]))


def sentence(rng: Random) -> Leaf:
    words = " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
    extra = rng.choice(["", " 50%", " (no)", " ü 漢字"])
    text = rng.choice(
        [words + extra, f'"{words}: {words} # not a comment"', f"'{words}, and so on: yes'", f'"{words}"']
    )
    return Leaf("text", text)


def some(rng: Random, options: dict[str, Callable[[], Any]], least: int = 1) -> Tree:
    chosen = rng.sample(sorted(options), rng.randint(least, len(options)))
    return {key: options[key]() for key in options if key in chosen}


def names(rng: Random) -> list[Leaf]:
    return [name(rng) for _ in range(rng.randint(1, 3))]


def json_schema(rng: Random, depth: int = 0) -> Tree:
    kind = rng.choice(["string", "integer", "object", "array"]) if depth < 2 else "string"
    tree: Tree = {"type": Leaf("json type", kind)}
    if rng.random() < 0.4:
        tree["description"] = quoted(rng, "json text", "a value that counts")
    match kind:
        case "string":
            tree |= some(rng, {"maxLength": lambda: Leaf("json number", "80"), "default": lambda: Leaf("any", "no")}, 0)
        case "integer":
            tree |= some(rng, {"minimum": lambda: Leaf("json number", "0"), "default": lambda: Leaf("any", "5")}, 0)
        case "array":
            tree["items"] = json_schema(rng, depth + 1)
        case _:
            properties = {word: json_schema(rng, depth + 1) for word in rng.sample(WORDS, rng.randint(1, 2))}
            tree["properties"] = properties
            if rng.random() < 0.5:
                tree["required"] = Leaf("json list", f"[{next(iter(properties))}]")
    return tree


def good_tree(rng: Random) -> Tree:
    """A contract with a random choice of everything that a contract can say."""
    usd, seconds = (lambda: Leaf("number", rng.choice(["0.5", "2", "1e1"]))), (lambda: Leaf("number", "12.5"))
    options: dict[str, Callable[[], Any]] = {
        "input": lambda: {"schema": json_schema(rng)},
        "output": lambda: {"schema": json_schema(rng)},
        "capabilities": lambda: names(rng),
        "requires": lambda: some(
            rng,
            {
                "platform_tools": lambda: Leaf("bool", rng.choice(["yes", "false", "on"])),
                "spawn_agents": lambda: Leaf("bool", "no"),
                "skills": lambda: names(rng),
            },
        ),
        "dependencies": lambda: {
            "python": Leaf("range", rng.choice(["'>=3.11,<4'", '">=3.11"'])),
            "packages": [Leaf("package", "numpy>=2.0"), Leaf("package", "'httpx[http2]~=0.28; python_version<\"4\"'")],
        },
        "lifecycle": lambda: some(
            rng,
            {"startup": lambda: Leaf("method", "on_startup"), "shutdown": lambda: quoted(rng, "method", "on_shutdown")},
        ),
        "timeout_s": seconds,
        "tools": lambda: {"allow": [Leaf("tool", "recall"), Leaf("tool", "'web_*'")], "deny": [Leaf("tool", "shell")]},
        "mcp": lambda: {"servers": {rng.choice(WORDS): {"url": Leaf("url", "http://127.0.0.1:1/x")}}},
        "context": lambda: some(
            rng,
            {
                "max_tokens": lambda: Leaf("whole", "9000"),
                "verbatim_exchanges": lambda: Leaf("whole", "4"),
                "files": lambda: [Leaf("path", "wiki/index.md"), Leaf("path", "'a file'")],
            },
        ),
        "persona": lambda: {"use": name(rng)},
        "governance": lambda: some(
            rng,
            {
                "owner": lambda: sentence(rng),
                "reviewed": lambda: Leaf("any", "2026-01-31"),
                "contact": lambda: {"mail": Leaf("any", "on"), "level": Leaf("any", "3")},
            },
        ),
    }
    agent: Tree = {"name": name(rng), "version": quoted(rng, "version", rng.choice(["1.2.0", "0.1.0-rc.1+b.5"]))}
    agent["description"] = sentence(rng)
    if rng.random() < 0.3:
        agent |= {"type": Leaf("choice", "orchestrator", protected=True)}
        agent["orchestration"] = {"strategies": [Leaf("choice", "chain_execution"), Leaf("choice", "parallel_fanout")]}
        agent["model_selection"] = {
            "tiers": {"fast": [Leaf("any text", "claude-haiku")], "balanced": [Leaf("any text", "lab:big")]},
            "routing_strategy": Leaf("choice", "cost_optimized"),
        }
    elif rng.random() < 0.5:
        agent["type"] = quoted(rng, "choice", rng.choice(["task", "conversational"]))
    if rng.random() < 0.5:
        agent["runtime"] = Leaf("choice", rng.choice(["prompt", "worker"]))
    if rng.random() < 0.5:
        agent["model"] = {"preference": quoted(rng, "model", "lab:small"), "override_allowed": Leaf("bool", "true")}
    if rng.random() < 0.5:
        agent["model"] = {
            "fallback": Leaf("model", "fast", protected=True),
            **agent.get("model", {"preference": Leaf("model", "fast")}),
        }
        agent["budget"] = {"on_cap": Leaf("choice", "fallback"), "usd_per_day": usd()}
    elif rng.random() < 0.7:
        agent["budget"] = some(
            rng,
            {
                "usd_per_run": usd,
                "usd_per_7d": usd,
                "tokens_per_run": lambda: Leaf("whole", "5000"),
                "wall_s": seconds,
                "children": lambda: Leaf("whole", "0"),
                "warn_at": lambda: [Leaf("fraction", "0.5"), Leaf("fraction", ".8")],
            },
        )
    if rng.random() < 0.4:
        agent["hardware"] = {"gpu": Leaf("bool", "true", protected=True), "gpu_vram_gb": Leaf("number", "16")}
        agent["hardware"] |= {"min_memory_gb": Leaf("number", "0.5"), "node_labels": {"tier": Leaf("any text", "no")}}
        agent["hardware"] |= {"device_access": [Leaf("device", "/dev/dri")]}
    agent |= {key: build() for key, build in options.items() if rng.random() < 0.4}
    head = {key: agent.pop(key) for key in ("name", "version", "description")}
    rest = list(agent.items())
    rng.shuffle(rest)
    return {"agent": {**head, **dict(rest)}}


def lines_of(tree: Tree, indent: int = 0, region: str = "strict", parent: int = -1, at: int = 0) -> list[Line]:
    """The tree as lines; `at` is the index of the first of them in the file."""
    lines: list[Line] = []
    for key, value in tree.items():
        here = at + len(lines)
        below = {"governance": "free", "node_labels": "labels", "schema": "schema", "servers": "named"}.get(key, region)
        if region == "named":
            below = "strict"  # a server's name is free, its keys are not
        if isinstance(value, Leaf):
            lines.append(Line(indent, key, value.text, value.kind, region, parent, value.protected))
            continue
        kind = "list" if isinstance(value, list) else "mapping"
        lines.append(Line(indent, key, "", kind, region, parent))
        if isinstance(value, list):
            lines += [Line(indent + 2, "", item.text, item.kind, below, here) for item in value]
        else:
            lines += lines_of(value, indent + 2, below, here, here + 1)
    return lines


def file_of(lines: Sequence[Line | str]) -> str:
    return "".join(f"{line if isinstance(line, str) else line.text}\n" for line in lines)
