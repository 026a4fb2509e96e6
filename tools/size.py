"""Fails when a module or a function outgrows what fits in a reader's head; prints how the tail stands.

Usage: size.py [FOLDER]   (default: src/atlas)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MODULE_LIMIT = 600
FUNCTION_LIMIT = 100
P90_AIM = 30
LONG = 60
LONG_SHARE_AIM = 0.01


class Function(NamedTuple):
    """A function and the lines from its `def` to its end, decorators left out."""

    place: str
    lines: int


def functions(path: Path, tree: ast.Module) -> Iterator[Function]:
    """Every function of a module, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(f"{path}:{node.lineno} {node.name}", length)


def main(folder: Path) -> int:
    """Prints the summary and every breach; the exit code is 1 when a limit is broken."""
    paths = sorted(folder.rglob("*.py"))
    modules: list[tuple[Path, int]] = []
    found: list[Function] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        modules.append((path, len(text.splitlines())))
        found += functions(path, ast.parse(text, str(path)))
    breaches = [
        f"{path}: {lines} lines, the limit is {MODULE_LIMIT}" for path, lines in modules if lines > MODULE_LIMIT
    ]
    breaches += [
        f"{f.place}: {f.lines} lines, the limit is {FUNCTION_LIMIT}" for f in found if f.lines > FUNCTION_LIMIT
    ]
    lengths = sorted(f.lines for f in found) or [0]
    p90 = lengths[int(0.9 * (len(lengths) - 1))]
    share = sum(length > LONG for length in lengths) / len(lengths)
    largest = max((lines for _, lines in modules), default=0)
    print(
        f"size: {len(modules)} modules (largest {largest}), {len(found)} functions "
        f"(p90 {p90}, aim {P90_AIM}; above {LONG}: {share:.1%}, aim {LONG_SHARE_AIM:.0%}; longest {lengths[-1]})"
    )
    for breach in breaches:
        print(f"size: {breach}", file=sys.stderr)
    return 1 if breaches or not modules else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/atlas")))
