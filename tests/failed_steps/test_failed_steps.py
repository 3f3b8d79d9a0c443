"""A few drawn failures of the series that ``make failures`` runs."""

import functools

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
