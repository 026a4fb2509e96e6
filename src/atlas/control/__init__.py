"""Use cases: submit, drive, inspect, answer, replay, fork, verify. Sees ports, never adapters."""
