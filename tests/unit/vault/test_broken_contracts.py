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

import pytest

from atlas.kernel.contract import AgentFile
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.load import load
from unit.vault.good_contracts import Line, file_of, good_tree, lines_of

PARTS = 8
STRUCTURED = 625  # broken files of each part; those that stay good come on top
BLIND = 625

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
    "package": (("--upgrade", "bad_value"), ("'a b c'", "bad_value"), ("[a]", "wrong_type")),
    "method": (("on startup", "bad_value"), ("1st", "bad_value"), ("[a]", "wrong_type")),
    "url": (("ftp://x", "bad_value"), ("localhost", "bad_value"), ("[a]", "wrong_type")),
    "device": (("video0", "bad_value"), ("/etc/passwd", "bad_value")),
    "json type": (("strin", "json_schema"), ("5", "json_schema"), ("[string, foo]", "json_schema")),
    "json number": (("many", "json_schema"), ("[1]", "json_schema"), (".inf", "not_finite")),
    "json text": (("5", "json_schema"), ("[a]", "json_schema")),
    "json list": (("text", "json_schema"), ("5", "json_schema"), ("[a, a]", "json_schema")),
}


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
