"""Tools: how they are declared, found and checked, and those that every agent has."""
