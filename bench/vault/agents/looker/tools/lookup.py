"""The tool of the loop: the same function that every peer is given."""

from __future__ import annotations

from atlas import tool


@tool(effect="read_only")
def lookup(number: int) -> str:
    """Looks a number up."""
    return f"The square of {number} is {number * number}."
