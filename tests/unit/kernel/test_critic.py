"""The critic's rule: who moves goes on, who does not is nudged once and then stopped."""

from __future__ import annotations

from atlas.kernel.critic import Watch, looked, ruled

SECOND = 1_000_000


def decisions(progress: list[int]) -> list[str]:
    """What the rule says at looks ten seconds apart, at each of which so many calls had brought something."""
    watch = Watch(10 * SECOND)
    said = []
    for made in progress:
        verdict = ruled(watch, made, watch.next_us)
        said.append(verdict.decision)
        watch = looked(watch, verdict.decision, made, watch.next_us, 10 * SECOND)
    assert watch.next_us == 10 * SECOND * (len(progress) + 1)
    return said


def test_a_turn_that_moves_is_extended_again_and_again() -> None:
    assert decisions([1, 2, 5, 6]) == ["extend"] * 4


def test_a_turn_that_does_not_move_is_nudged_once_then_stopped() -> None:
    assert decisions([0, 0]) == ["nudge", "stop"]
    assert decisions([3, 3, 3]) == ["extend", "nudge", "stop"]


def test_a_nudge_that_helped_is_forgotten() -> None:
    assert decisions([0, 1, 1, 2, 2, 2]) == ["nudge", "extend", "nudge", "extend", "nudge", "stop"]


def test_what_it_says_names_the_time_taken() -> None:
    assert "42 s" in ruled(Watch(0), 0, 42 * SECOND).text
    assert "42 s" in ruled(Watch(0, is_nudged=True), 0, 42 * SECOND).text
