"""A few drawn failures of the series that ``make failures`` runs."""

import functools

import injected
import pytest
import series

NUM_FAILURES = 20


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_after_any_failure_a_job_goes_on_as_if_it_had_started_there(
    placement, tmp_path
):
    """Any step, replica and place: copies, reads, positions and what follows."""
    make = functools.partial(series.make_repl, placement=placement)

    assert [] == series.run(1, NUM_FAILURES, make, tmp_path)


def test_the_series_finds_copies_that_differ(tmp_path, monkeypatch):
    """As they do where nothing repairs them after a failure."""
    make = functools.partial(series.make_repl, placement="mirrored")
    monkeypatch.setattr(
        "replicator.engine.run.program.Program.repair", lambda *_, **__: None
    )

    found = series.run(1, NUM_FAILURES, make, tmp_path)

    assert any("copies of" in line for line in found)
    assert any("reads as" in line for line in found)
    assert injected.NUM_PLACES == 5
