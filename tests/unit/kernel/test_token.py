"""Tokens are learnt from what providers report: at once downwards, carefully upwards."""

from __future__ import annotations

import pytest

from atlas.kernel.contract import Context
from atlas.kernel.model import Usage
from atlas.kernel.token import (
    DEFAULT_RATE,
    HIGHEST_RATE,
    LOWEST_RATE,
    Calibration,
    Limits,
    Sample,
    count,
    learnt,
    lightened,
    limits_of,
    lowered,
    text_size,
)


def sample(rate: float, model: str = "one:model", tokens: int = 1_000) -> Sample:
    return Sample(model, int(rate * tokens), Usage(tokens))


def test_a_request_with_more_tokens_than_thought_lowers_the_rate_at_once() -> None:
    assert lowered(3.0, sample(2.0)) == 1.9


def test_within_a_turn_the_rate_never_rises() -> None:
    assert lowered(3.0, sample(4.5)) == 3.0


def test_a_request_that_was_too_long_lowers_the_rate_as_far_as_it_goes() -> None:
    rates = [DEFAULT_RATE]
    while rates[-1] > LOWEST_RATE:
        rates.append(lightened(rates[-1]))
    assert rates == [3.0, 2.0, 1.3, 1.0]


def test_what_a_model_can_read_narrows_what_the_contract_asks_for_and_never_widens_it() -> None:
    assert limits_of(Context(), 8_192).total == 6_144
    assert limits_of(Context(), 8_192).window == 2_688
    assert limits_of(Context(max_tokens=4_000), 8_192) == limits_of(Context(max_tokens=4_000))
    assert limits_of(Context(), 200_000) == limits_of(Context(), 0) == Limits()
    assert limits_of(Context(), 2_048).total == 1_024
    long = limits_of(Context(), 16_384, output=6_000)
    assert (long.total, long.output) == (10_384, 6_000)
    cramped = limits_of(Context(), 8_192, output=6_000)
    assert (cramped.total, cramped.output) == (4_096, 4_096)


@pytest.mark.parametrize("usage", [Usage(1_000, is_estimated=True), Usage(0), Usage(20)])
def test_what_nobody_counted_teaches_nothing(usage: Usage) -> None:
    assert Sample("one:model", 100, usage).rate is None
    assert lowered(3.0, Sample("one:model", 100, usage)) == 3.0
    assert learnt(Calibration(), [Sample("one:model", 100, usage)]) == Calibration()


def test_after_a_turn_the_rate_is_the_lowest_that_was_seen() -> None:
    after = learnt(Calibration(), [sample(4.4), sample(4.0), sample(4.2)])
    assert after.models == (("one:model", 3.8),)
    assert after.rate == 3.8


def test_a_small_rise_is_not_followed_and_a_large_one_is() -> None:
    before = Calibration((("one:model", 3.5),))
    assert learnt(before, [sample(3.8)]) == before
    assert learnt(before, [sample(4.5)]).rate == 4.3
    assert learnt(before, [sample(3.0)]).rate == 2.9


def test_of_several_models_the_densest_counts_and_old_ones_are_forgotten() -> None:
    calibration = Calibration()
    for number in range(6):
        calibration = learnt(calibration, [sample(2.0 + number / 2, f"model:{number}")])
    assert [model for model, _ in calibration.models] == [f"model:{number}" for number in (2, 3, 4, 5)]
    assert calibration.rate == min(rate for _, rate in calibration.models)


def test_a_provider_that_counts_nonsense_is_not_believed() -> None:
    assert sample(50.0).rate == HIGHEST_RATE
    assert sample(0.01).rate == LOWEST_RATE


def test_without_any_report_the_rate_is_cautious() -> None:
    assert Calibration().rate == DEFAULT_RATE


def test_a_count_is_from_above() -> None:
    assert count(10, 3.0) == 4
    assert text_size('a "quoted"\nline') == len('a \\"quoted\\"\\nline')


def test_limits_of_a_contract_keep_their_proportions() -> None:
    usual = Limits()
    half = limits_of(Context(max_tokens=usual.total // 2))
    assert (half.total, half.window, half.user) == (usual.total // 2, usual.window // 2, usual.user // 2)
    assert limits_of(Context()) == usual


def test_an_answer_of_recall_is_never_longer_than_a_result_may_be() -> None:
    limits = limits_of(Context(recall_tokens=5_000))
    assert limits.recall == 5_000 < limits.result
    assert limits_of(Context(verbatim_exchanges=0)).exchanges == 0


def test_limits_in_bytes_follow_the_rate() -> None:
    assert Limits().at(2.0).total == 2 * Limits().total
    assert Limits().at(2.0).exchanges == Limits().exchanges
