"""Secrets planted wherever they could leak are found nowhere; without redaction they are found everywhere."""

from __future__ import annotations

import pytest

from atlas.testing.canary import CanaryReport, main


@pytest.fixture(scope="module")
def sighted() -> CanaryReport:
    return main()


@pytest.mark.timeout(600)
def test_no_secret_lands_anywhere(sighted: CanaryReport) -> None:
    assert sighted.problems == ()
    assert sighted.where == ()
    assert sighted.ok
    assert sighted.runs == 15
    assert sighted.values > 500


@pytest.mark.timeout(600)
def test_without_redaction_every_secret_is_found_in_events_blobs_pages_and_printed_text() -> None:
    blind = main(blind=True)
    assert not blind.ok
    names = {where.partition(" in ")[0] for where in blind.where}
    assert names == {"API_TOKEN", "ODD_KEY", "PIN_CODE", "PEM_KEY", "LAB_KEY"}
    places = " ".join(blind.where)
    for place in ("table ledger.db.event", "blobs", "printed", "inbox/run_"):
        assert place in places, place
