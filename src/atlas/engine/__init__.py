"""Runs agents' Python code: in pooled worker processes, or inside this process."""
