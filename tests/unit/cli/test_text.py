"""Values as people read them."""

from __future__ import annotations

import pytest

from atlas.cli.text import ago, clean, count, duration, money, one_line, short


@pytest.mark.parametrize(
    "time_us, text",
    [
        (0, "0us"),
        (999, "999us"),
        (1_000, "1ms"),
        (999_400, "999ms"),
        (999_600, "1.00s"),
        (1_240_000, "1.24s"),
        (59_000_000, "59.0s"),
        (64_000_000, "1m04s"),
        (3_599_600_000, "1h00m"),
        (7_500_000_000, "2h05m"),
        (180_000_000_000, "2d02h"),
    ],
)
def test_durations_are_short_and_never_round_up_into_a_wrong_unit(time_us: int, text: str) -> None:
    assert duration(time_us) == text


def test_money_keeps_small_amounts_visible() -> None:
    assert [money(0.000022), money(0.00005)] == ["$0.000022", "$0.0001"]
    assert [money(0), money(0.0043), money(12.5), money(1234.5)] == ["$0", "$0.0043", "$12.5000", "$1,234.50"]


def test_ago_uses_one_unit_and_never_the_future() -> None:
    now = 100_000_000_000_000
    assert [ago(now - s * 1_000_000, now) for s in (-5, 0, 59, 60, 7200, 90_000)] == [
        "0s ago",
        "0s ago",
        "59s ago",
        "1m ago",
        "2h ago",
        "1d ago",
    ]


def test_control_characters_become_visible_and_text_stays() -> None:
    assert clean("a\tb\nc\r\nd é 漢 \x1b[0m\x9b\u202e") == "a\tb\nc\nd é 漢 \\x1b[0m\\x9b\\u202e"


def test_one_line_cuts_with_a_mark() -> None:
    assert one_line("a\n b\t c", 10) == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_a_short_id_is_a_prefix() -> None:
    run_id = "run_0193a1b2c3d47abc8def0123456789ab"
    assert run_id.startswith(short(run_id))
    assert len(short(run_id)) == 20


def test_nouns_follow_their_number() -> None:
    assert [count(0, "step"), count(1, "step"), count(1200, "step")] == ["0 steps", "1 step", "1,200 steps"]
