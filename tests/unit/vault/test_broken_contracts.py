"""Ten thousand broken contracts: no traceback, and every refusal names the line that was broken.

Half of them are good contracts with one thing broken by a mutator that knows the structure: it says which line the
refusal must name and with which code, or that the file is still good. The other half are damaged blindly; they may be
refused, with a code and a place inside the file, or happen to be good. The seed is printed; ATLAS_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from atlas.kernel.contract import AgentFile
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.load import load

PARTS = 8
STRUCTURED = 625  # broken files of each part; those that stay good come on top
BLIND = 625

# ------------------------------------------------------------------ good contracts


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

WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    "name": (("Has Space", "bad_value"), ("-x", "bad_value"), ("[a]", "wrong_type"), ('""', "bad_value")),
    "version": (("1.2", "bad_value"), ("v1.2.3", "bad_value"), ("01.2.3", "bad_value"), ("{a: b}", "wrong_type")),
    "text": (("[a]", "wrong_type"), ("{a: b}", "wrong_type")),
    "bool": (("maybe", "wrong_type"), ("'true'", "wrong_type"), ("1", "wrong_type"), ("[yes]", "wrong_type")),
    "whole": (("1.5", "wrong_type"), ("x", "wrong_type"), ("'1'", "wrong_type"), ("-1", "out_of_range")),
    "number": (("x", "wrong_type"), ("-1", "out_of_range"), (".nan", "not_finite"), ("1e999", "not_finite")),
    "fraction": (("0", "out_of_range"), ("1.5", "out_of_range"), ("-.inf", "not_finite"), ("half", "wrong_type")),
    "choice": (("nonsense", "unknown_value"), ("TASK", "unknown_value"), ("[task]", "wrong_type")),
    "model": (("fsat", "bad_value"), ("lab: x", "yaml_syntax"), ("[fast]", "wrong_type")),
    "tool": (("a b", "bad_value"), ("'!'", "bad_value"), ("{a: b}", "wrong_type")),
    "range": (("3.11", "bad_value"), ("'>= '", "bad_value"), ("[a]", "wrong_type")),
    "package": (("--index-url=x", "bad_value"), ("'a b c'", "bad_value"), ("[a]", "wrong_type")),
    "method": (("on startup", "bad_value"), ("1st", "bad_value"), ("[a]", "wrong_type")),
    "url": (("ftp://x", "bad_value"), ("localhost", "bad_value"), ("[a]", "wrong_type")),
    "device": (("video0", "bad_value"), ("/etc/passwd", "bad_value")),
    "json type": (("strin", "json_schema"), ("5", "json_schema"), ("[string, foo]", "json_schema")),
    "json number": (("many", "json_schema"), ("[1]", "json_schema"), (".inf", "not_finite")),
    "json text": (("5", "json_schema"), ("[a]", "json_schema")),
    "json list": (("text", "json_schema"), ("5", "json_schema"), ("[a, a]", "json_schema")),
}
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
            rng, {"max_tokens": lambda: Leaf("whole", "9000"), "verbatim_exchanges": lambda: Leaf("whole", "4")}
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


# ------------------------------------------------------------------ one thing broken


@dataclass(frozen=True)
class Mutation:
    """A file, the line that a refusal of it must name, and the codes that it may have there; no codes: still good."""

    data: bytes
    line: int = 0
    codes: frozenset[str] = frozenset()


def broken(lines: Sequence[Line | str], index: int, *codes: str) -> Mutation:
    return Mutation(file_of(lines).encode(), index + 1, frozenset(codes))


def still_good(lines: Sequence[Line | str]) -> Mutation:
    return Mutation(file_of(lines).encode())


def pick(rng: Random, lines: Sequence[Line], wanted: Callable[[Line], object]) -> int | None:
    """The index of a line that is wanted, other than the first."""
    found = [index for index, line in enumerate(lines) if index and wanted(line)]
    return rng.choice(found) if found else None


def siblings(lines: Sequence[Line], index: int) -> list[int]:
    return [other for other, line in enumerate(lines) if line.parent == lines[index].parent]


def subtree_end(lines: Sequence[Line], index: int) -> int:
    end = index + 1
    while end < len(lines) and lines[end].indent > lines[index].indent:
        end += 1
    return end


def is_leaf(line: Line) -> bool:
    return line.kind not in ("mapping", "list")


def put(lines: Sequence[Line], index: int, *new: Line | str) -> list[Line | str]:
    return [*lines[:index], *new, *lines[index + 1 :]]


def mangled(rng: Random, key: str) -> str:
    at = rng.randrange(len(key))
    return rng.choice([key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key + "x", key.upper(), f"{key}-{key}"])


def misspell_key(rng: Random, lines: list[Line]) -> Mutation | None:
    index = rng.randrange(len(lines)) if rng.random() < 0.1 else pick(rng, lines, lambda line: line.key)
    if index is None or not lines[index].key:
        return None
    new = mangled(rng, lines[index].key)
    taken = {lines[other].key for other in siblings(lines, index)}
    if not new or new in taken or new.isdigit():
        return None
    changed = put(lines, index, replace(lines[index], key=new))
    if lines[index].region == "strict":
        return broken(changed, index, "unknown_key")
    if lines[index].region == "named":
        return still_good(changed) if new == new.lower() else broken(changed, index, "bad_value")
    return still_good(changed)  # free keys, and words that JSON Schema does not know


def wrong_value(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.kind in WRONG and (line.region != "free"))
    if index is None:
        return None
    text, code = rng.choice(WRONG[lines[index].kind])
    return broken(put(lines, index, replace(lines[index], value=text)), index, code)


def empty_value(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: is_leaf(line) and line.region in ("strict", "free", "labels"))
    if index is None:
        return None
    changed = put(lines, index, replace(lines[index], value=""))
    return still_good(changed) if lines[index].region == "free" else broken(changed, index, "missing_value")


def duplicate_key(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.key and is_leaf(line))
    return None if index is None else broken(put(lines, index, lines[index], lines[index]), index + 1, "duplicate_key")


def remove_required(rng: Random, lines: list[Line]) -> Mutation | None:
    index = rng.choice([1, 2, 3])
    return broken(put(lines, index), 0, "missing_key")


def remove_optional(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: is_leaf(line) and line.parent > 0 and not line.protected)
    if index is None:
        return None
    changed, line = put(lines, index), lines[index]
    if len(siblings(lines, index)) > 1:
        return still_good(changed)
    parent = lines[line.parent]
    if parent.region == "free":
        return still_good(changed)  # null where anything may stand
    if parent.region == "schema":
        return broken(changed, line.parent, "json_schema")
    return broken(changed, line.parent, "missing_value")


def break_rule(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.protected)
    if index is None:
        return None
    other, code = {
        "type": ("orchestration", "not_an_orchestrator"),
        "fallback": ("on_cap", "missing_fallback"),
        "gpu": ("gpu_vram_gb", "gpu_not_required"),
    }[lines[index].key]
    (place,) = [at for at, line in enumerate(lines) if line.key == other]
    return broken(put(lines, index), place - (place > index), code)


def tab(rng: Random, lines: list[Line]) -> Mutation | None:
    index = rng.randrange(1, len(lines))
    text = lines[index].text
    kept = rng.randrange(lines[index].indent)
    return broken(put(lines, index, " " * kept + "\t" + text.lstrip()), index, "yaml_tab")


def unclosed_quote(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.value[:1] in ("'", '"'))
    if index is None:
        return None
    return broken(put(lines, index, lines[index].text[:-1]), index, "yaml_syntax")


def drop_colon(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.key)
    if index is None:
        return None
    line = lines[index]
    changed = put(lines, index, f"{' ' * line.indent}{line.key} {line.value}".rstrip())
    if ": " in line.value:  # what stands before it is a key now
        return still_good(changed) if line.region == "free" else broken(changed, index, "unknown_key")
    if len(siblings(lines, index)) > 1:
        return broken(changed, index, "yaml_syntax")
    parent = lines[line.parent]  # the line is now the text that the key above has as its value
    if not is_leaf(line) and any(
        ": " in other.text or other.text.endswith(":") for other in lines[index + 1 : subtree_end(lines, index)]
    ):
        return broken(changed, index, "yaml_syntax")
    if parent.region == "free":
        return still_good(changed)
    return broken(changed, index, "wrong_type", "json_schema")


def indent_more(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.key)
    if index is None:
        return None
    family = siblings(lines, index)
    changed = put(lines, index, " " + lines[index].text)
    if len(family) == 1 and is_leaf(lines[index]):
        return still_good(changed)
    if index == family[0]:
        return None  # the next line is the odd one then, and which of them was meant nobody knows
    return broken(changed, index, "yaml_syntax")


def move_to_top(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.key and is_leaf(line) and line.region == "strict")
    if index is None:
        return None
    moved = replace(lines[index], indent=0)
    return broken([*put(lines, index), moved], len(lines) - 1, "unknown_key")


def block_to_value(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.kind == "mapping")
    if index is None:
        return None
    new = replace(lines[index], value=rng.choice(["text", "[a, b]", "5"]))
    changed: list[Line | str] = [*lines[:index], new, *lines[subtree_end(lines, index) :]]
    if lines[index].region == "free":
        return still_good(changed)
    return broken(changed, index, "wrong_type", "json_schema")


def add_tag(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, is_leaf)
    if index is None:
        return None
    tag = rng.choice(["!!str", "!mine", "!!python/object/apply:os.system", "!<tag:x,2026:y>"])
    return broken(put(lines, index, replace(lines[index], value=f"{tag} {lines[index].value}")), index, "yaml_tag")


def add_merge_key(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.kind == "mapping")
    if index is None:
        return None
    merge = " " * (lines[index].indent + 2) + "<<: {a: 1}"
    return broken(put(lines, index, lines[index], merge), index + 1, "yaml_merge_key")


def alias_to_nothing(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, is_leaf)
    if index is None:
        return None
    return broken(put(lines, index, replace(lines[index], value="*nowhere")), index, "undefined_alias")


def add_anchor(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, is_leaf)
    if index is None:
        return None
    return still_good(put(lines, index, replace(lines[index], value=f"&here {lines[index].value}")))


def remote_reference(rng: Random, lines: list[Line]) -> Mutation | None:
    index = pick(rng, lines, lambda line: line.kind == "mapping" and (line.key in ("schema", "items")))
    if index is None:
        return None
    target = rng.choice(["http://example.com/s.json", "file:///etc/passwd", "other.json"])
    new = f"{' ' * (lines[index].indent + 2)}$ref: {target}"
    return broken(put(lines, index, lines[index], new), index + 1, "json_schema_remote_ref")


def control_character(rng: Random, lines: list[Line]) -> Mutation | None:
    index, text = rng.randrange(len(lines)), ""
    text = lines[index].text
    at = rng.randrange(len(text) + 1)
    bad = rng.choice("\0\x01\x08\x0b\x1f\x7f\x9f\ufffe")
    return broken(put(lines, index, text[:at] + bad + text[at:]), index, "control_character")


def bad_byte(rng: Random, lines: list[Line]) -> Mutation | None:
    rows = file_of(lines).encode().split(b"\n")
    index = rng.randrange(len(lines))
    at = rng.choice([0, len(rows[index])])  # not inside a character of several bytes
    rows[index] = rows[index][:at] + rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"]) + rows[index][at:]
    return Mutation(b"\n".join(rows), index + 1, frozenset({"not_utf8"}))


def second_document(rng: Random, lines: list[Line]) -> Mutation | None:
    return broken([*lines, "---", *lines[: rng.randint(0, len(lines))]], len(lines), "several_documents")


def byte_order_mark(rng: Random, lines: list[Line]) -> Mutation | None:
    return Mutation(b"\xef\xbb\xbf" + file_of(lines).encode(), 1, frozenset({"byte_order_mark"}))


def harmless(rng: Random, lines: list[Line]) -> Mutation | None:
    index = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            return still_good(put(lines, index, "# a: comment 'with \"traps", lines[index]))
        case 1:
            return still_good(put(lines, index, "", lines[index]))
        case 2:
            return still_good(put(lines, index, lines[index].text + "   "))
        case 3:
            return Mutation(file_of(lines).replace("\n", "\r\n").encode())
        case _:
            return still_good(["---", *lines, "..."])


MUTATORS = (
    misspell_key,
    wrong_value,
    empty_value,
    duplicate_key,
    remove_required,
    remove_optional,
    break_rule,
    tab,
    unclosed_quote,
    drop_colon,
    indent_more,
    move_to_top,
    block_to_value,
    add_tag,
    add_merge_key,
    alias_to_nothing,
    add_anchor,
    remote_reference,
    control_character,
    bad_byte,
    second_document,
    byte_order_mark,
    harmless,
)

# ------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def seed() -> str:
    return os.environ.get("ATLAS_TEST_SEED") or os.urandom(6).hex()


def refusal(data: bytes) -> tuple[Problem, ...]:
    """The problems of a contract, none when it is good; anything but Invalid fails the test."""
    try:
        load(data, AgentFile, path="agent.yaml", rules=AgentFile.findings)
    except Invalid as error:
        assert error.reason  # noqa: PT017
        assert error.problems  # noqa: PT017
        for problem in error.problems:
            assert problem.code
            assert problem.message
            assert problem.where.startswith("agent.yaml:")
            assert problem.column >= 1
        return error.problems
    return ()


def show(seed: str, mutator: str, data: bytes, problems: Sequence[Problem]) -> str:
    found = "\n".join(f"  {problem.line}:{problem.column} {problem.code} {problem.message}" for problem in problems)
    numbered = "\n".join(f"{n:4} {row!r}" for n, row in enumerate(data.split(b"\n"), 1))
    return f"seed {seed}, {mutator}\n{numbered}\nproblems:\n{found or '  none'}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_broken_contract_is_refused_at_the_line_that_was_broken(part: int, seed: str) -> None:
    rng = Random(f"{seed}-{part}")
    contracts = [lines_of(good_tree(rng)) for _ in range(60)]
    for lines in contracts:
        assert refusal(file_of(lines).encode()) == (), show(
            seed, "good", file_of(lines).encode(), refusal(file_of(lines).encode())
        )
    counts: Counter[str] = Counter()
    used: Counter[str] = Counter()
    while counts["refused"] < STRUCTURED:
        mutator = rng.choice(MUTATORS)
        mutation = mutator(rng, rng.choice(contracts))
        if mutation is None:
            counts["no place"] += 1
            continue
        used[mutator.__name__] += 1
        problems = refusal(mutation.data)
        told = show(seed, mutator.__name__, mutation.data, problems)
        if not mutation.codes:
            assert not problems, f"{told}\nexpected: still good"
            counts["still good"] += 1
            continue
        places = {(problem.line, problem.code) for problem in problems}
        expected = {(mutation.line, code) for code in mutation.codes}
        assert places & expected, f"{told}\nexpected: line {mutation.line}, {sorted(mutation.codes)}"
        counts["refused"] += 1
    print(f"seed {seed}: {dict(counts)}")
    assert set(used) == {mutator.__name__ for mutator in MUTATORS}
    assert counts["still good"] > 20


def damaged(rng: Random, good: Sequence[bytes]) -> bytes:
    """A file damaged without any idea of its structure."""
    data = bytearray(rng.choice(good))
    at, other = rng.randrange(len(data)), rng.randrange(len(data))
    low, high = min(at, other), max(at, other)
    match rng.randrange(9):
        case 0:
            return rng.randbytes(rng.randrange(400))
        case 1:
            return "".join(rng.choices("ag:n -\n\t'\"[]{}&*!|>%@,?#01.~<\\=é\u2028", k=rng.randrange(200))).encode()
        case 2:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 3:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = ord(rng.choice(":-\n\t'\"[]{}&*!|>#, "))
        case 4:
            del data[low:high]
        case 5:
            data = data[:at]
        case 6:
            data[at:at] = data[low:high]
        case 7:
            rows = bytes(data).split(b"\n")
            rng.shuffle(rows)
            return b"\n".join(rows)
        case _:
            return bytes(data[:at]) + rng.choice(good)[other:]
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_contract_damaged_blindly_is_refused_with_a_place_or_is_good(part: int, seed: str) -> None:
    rng = Random(f"{seed}-blind-{part}")
    good = [file_of(lines_of(good_tree(rng))).encode() for _ in range(40)]
    counts: Counter[str] = Counter()
    for _ in range(BLIND):
        data = damaged(rng, good)
        problems = refusal(data)
        rows = len(data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n"))
        for problem in problems:
            assert 1 <= problem.line <= rows, show(seed, "blind", data, problems)
        counts["refused" if problems else "good"] += 1
    print(f"seed {seed}: {dict(counts)}")
    assert counts["refused"] > BLIND / 2
