"""The terminal: commands that parse words, call use cases and print. No rules live here."""

from atlas.cli.entry import root

__all__ = ["root"]
