"""Budgets as pure functions: which caps apply when, how much a call may use, what a refusal says."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.budget import (
    Balance,
    Cap,
    Grant,
    Hold,
    Meter,
    Need,
    Pool,
    Wait,
    caps_at,
    check,
    day_at,
    fleet_caps,
    forecast,
    grant,
    in_full,
    meters_at,
    micro_usd,
    pool_of,
    reached,
    usd,
    within_request,
)
from atlas.kernel.contract import Budget
from atlas.kernel.errors import BudgetBusy, BudgetRefused, LimitRefused
from atlas.kernel.event import Spend

AUCKLAND = ZoneInfo("Pacific/Auckland")
NEW_YORK = ZoneInfo("America/New_York")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def by_name(caps: tuple[Cap, ...]) -> dict[str, Cap]:
    return {cap.name: cap for cap in caps}


def test_a_day_begins_where_the_zone_says() -> None:
    assert day_at(at("2026-11-15T10:59:59"), AUCKLAND) == "2026-11-15"
    assert day_at(at("2026-11-15T11:00:00"), AUCKLAND) == "2026-11-16"
    assert day_at(at("2026-11-01T04:30:00"), NEW_YORK) == "2026-11-01"


def test_caps_of_a_period_name_its_buckets() -> None:
    budget = Budget(usd_per_day=2, usd_per_7d=10, usd_per_month=20, warn_at=(0.5,))
    caps = by_name(fleet_caps(at("2026-11-30T11:30:00"), AUCKLAND, budget))
    day, week, month = (caps[f"fleet usd_per_{name}"] for name in ("day", "7d", "month"))
    assert (day.first, day.last, day.micro_usd, day.warn_at) == ("2026-12-01", "2026-12-01", 2_000_000, (0.5,))
    assert (month.first, month.last) == ("2026-12-01", "2026-12-31")
    assert (week.scope, week.first, week.last) == ("hour/fleet", "2026-11-23T06", "2026-11-30T06")


def test_every_meter_of_an_effect_lies_under_the_caps_that_apply_to_it() -> None:
    budget = Budget(usd_per_day=1, usd_per_7d=1, usd_per_month=1)
    pools = (Pool("run_a", 5), Pool("run_b", None, 7))
    for moment in ("2026-03-29T01:30:00", "2026-10-25T00:30:00", "2026-12-31T23:59:59", "2026-11-01T05:30:00"):
        for zone in (UTC, AUCKLAND, NEW_YORK, ZoneInfo("Europe/Berlin")):
            names = {"agent": "x", "principal": "owner", "pools": pools}
            caps = caps_at(at(moment), zone, fleet=budget, contract=budget, **names)  # type: ignore[arg-type]
            meters = meters_at(at(moment), zone, **names)  # type: ignore[arg-type]
            assert len(caps) == 8
            # Exactly one: none would go uncounted, two would count double.
            assert [sum(cap.covers(meter) for meter in meters) for cap in caps] == [1] * 8


@given(st.integers(at("2026-01-01T00:00:00"), at("2027-12-31T00:00:00")), st.integers(0, 7 * 86_400 * 1_000_000))
def test_a_rolling_window_holds_everything_of_the_last_seven_days(now_us: int, ago_us: int) -> None:
    [cap] = fleet_caps(now_us, NEW_YORK, Budget(usd_per_7d=1))
    meters = meters_at(now_us - ago_us, NEW_YORK, agent="x", principal="owner")
    assert any(cap.covers(meter) for meter in meters)
    old = meters_at(now_us - ago_us - (7 * 24 + 6) * 3_600 * 1_000_000, NEW_YORK, agent="x", principal="owner")
    assert not any(cap.covers(meter) for meter in old)


def test_principals_with_slashes_share_no_meter() -> None:
    scopes = {
        meter.scope
        for agent, principal in (("c", "a/b"), ("b", "a"), ("hours", "a"), ("a", "hour/a"))
        for meter in meters_at(0, UTC, agent=agent, principal=principal)
    }
    assert len(scopes) == 2 + 2 * 4


def test_money_given_extra_raises_every_cap_on_money() -> None:
    budget = Budget(usd_per_day=1)
    pools = (Pool("run_a", 5, 9), Pool("run_b", None, 7))
    caps = caps_at(0, UTC, fleet=budget, contract=Budget(), agent="x", principal="o", pools=pools, raised_micro_usd=100)
    assert [(cap.micro_usd, cap.tokens) for cap in caps] == [(None, 7), (105, 9), (1_000_100, None)]


def test_the_smallest_of_all_that_limits_a_run_makes_its_pool() -> None:
    assert pool_of("run_a", [Budget(), Budget(usd_per_day=3)]) is None
    budgets = [Budget(usd_per_run=0.5, tokens_per_run=900), Budget(usd_per_run=0.1)]
    assert pool_of("run_a", budgets) == Pool("run_a", 100_000, 900)
    assert pool_of("run_a", budgets, usd_given=0.07) == Pool("run_a", 70_000, 900)
    assert pool_of("run_a", [], usd_given=0.0) == Pool("run_a", 0, None)


CAP = Cap("tree", "tree/a", micro_usd=1_000, tokens=10_000)


def price(output: int) -> int:
    return 100 + output


def test_a_call_is_granted_the_longest_answer_it_can_afford() -> None:
    need = Need(50, 4_096)
    assert grant(need, price, (), ()) == Grant(4_096, 4_196, 4_146)
    assert grant(need, price, (CAP,), (Balance(),)) == Grant(900, 1_000, 950)
    assert grant(need, price, (CAP,), (Balance(300, 200),)) == Grant(400, 500, 450)
    assert grant(need, price, (CAP,), (Balance(0, 0, 9_000, 0),)) == Grant(900, 1_000, 950)
    assert grant(need, lambda _: 0, (CAP,), (Balance(0, 0, 9_000, 500),)) == Grant(450, 0, 500)
    assert grant(Need(50, 10), price, (CAP,), (Balance(890, 0),)) == Grant(10, 110, 60)


def test_below_the_floor_it_waits_for_others_or_is_refused() -> None:
    need = Need(50, 4_096)
    waits = grant(need, price, (CAP,), (Balance(300, 400),))
    assert isinstance(waits, Wait)
    assert waits.cap == CAP
    refusal = grant(need, price, (CAP,), (Balance(700, 0),))
    assert isinstance(refusal, BudgetRefused)
    assert "'tree'" in refusal.message
    assert "$0.0007 spent" in refusal.message
    tight = Cap("other", "x", micro_usd=10)
    mixed = grant(need, price, (CAP, tight), (Balance(300, 400), Balance()))
    assert isinstance(mixed, BudgetRefused)
    assert "'other'" in mixed.message


balances = st.builds(
    Balance, st.integers(0, 2_000), st.integers(0, 2_000), st.integers(0, 20_000), st.integers(0, 20_000)
)


@given(st.integers(1, 3_000), st.integers(1, 3_000), st.integers(0, 40), st.integers(0, 300), balances)
def test_what_is_granted_is_admitted_and_nothing_larger_is(
    tokens_in: int, output: int, rate: int, floor: int, balance: Balance
) -> None:
    def cost(limit: int) -> int:
        return -(-(tokens_in + limit) * rate // 10)

    def fits(limit: int) -> str:
        try:
            check((CAP,), (balance,), Hold(cost(limit), tokens_in + limit))
        except (BudgetRefused, BudgetBusy) as error:
            return type(error).__name__
        return ""

    found = grant(Need(tokens_in, output), cost, (CAP,), (balance,), floor)
    least = min(floor, output)
    match found:
        case Grant():
            assert least <= found.max_output_tokens <= output
            assert fits(found.max_output_tokens) == ""
            assert found.max_output_tokens == output or fits(found.max_output_tokens + 1)
            assert (found.micro_usd, found.tokens) == (
                cost(found.max_output_tokens),
                tokens_in + found.max_output_tokens,
            )
        case Wait():
            assert fits(least) == "BudgetBusy"
        case BudgetRefused():
            assert fits(least) == "BudgetRefused"


def test_a_limit_of_one_request_is_another_refusal_than_a_total() -> None:
    assert within_request(Need(100, 500), None) == Need(100, 500)
    assert within_request(Need(100, 500), 400) == Need(100, 300)
    assert within_request(Need(100, 20), 120) == Need(100, 20)
    with pytest.raises(LimitRefused) as caught:
        within_request(Need(100, 500), 355)
    assert caught.value.reason == "tokens_per_request"


def test_a_lost_call_counts_as_everything_it_had_reserved() -> None:
    settled = in_full("e1", Hold(70, 300, 120, "lab:small", (Meter("fleet", "2026-11-16"),), "2026-11-16"))
    assert (settled.spend, settled.model, settled.is_estimated) == (Spend(0, 180, 120, 70), "lab:small", True)


def test_thresholds_are_about_what_is_spent_not_what_is_reserved() -> None:
    cap = Cap("day", "fleet", micro_usd=100, tokens=50, warn_at=(0.5, 0.8))
    assert reached(cap, Balance(49, 1_000)) == ()
    assert reached(cap, Balance(50)) == (0.5,)
    assert reached(cap, Balance(0, 0, 45)) == (0.5, 0.8)
    assert reached(Cap("zero", "fleet", micro_usd=0, warn_at=(1.0,)), Balance(1)) == (1.0,)


def test_debt_is_what_was_billed_past_the_cap() -> None:
    assert Balance(1_200, 500).debt(CAP) == 200
    assert Balance(900, 500).debt(CAP) == 0
    assert Balance(0, 0, 10_001).debt_tokens(CAP) == 1


def test_a_forecast_goes_on_as_the_last_days_did() -> None:
    assert forecast(500, 700, 7.0, 3.0) == 800
    assert forecast(500, 0, 0.0, 3.0) == 500
    assert forecast(500, 700, 7.0, -1.0) == 500


def test_money_is_whole_micro_dollars_and_caps_round_down() -> None:
    assert (micro_usd(0.1), micro_usd(0.07), micro_usd(1e-7), micro_usd(2.5)) == (100_000, 70_000, 0, 2_500_000)
    assert (usd(0), usd(1), usd(1_500_000), usd(-250_000), usd(1_234_567_890_000)) == (
        *("$0.00", "$0.000001", "$1.50", "-$0.25", "$1,234,567.89"),
    )
