"""Random step functions on real workers give what R copies in lock step give."""

import on_clusters
import pytest

NUM_PROGRAMS = 20  # `run_series.py` draws hundreds
SEED = 2019


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("backend", on_clusters.RUNNERS)
def test_random_programs_agree_on_workers(tmp_path, backend):
    """Two workers of two replicas; ``test_fuzz`` compares what one process runs.

    All of it is left to the full run.
    """
    for verdicts, found in on_clusters.run(backend, tmp_path, SEED, NUM_PROGRAMS):
        assert [] == found
        assert NUM_PROGRAMS == sum(verdicts.values())
        assert NUM_PROGRAMS // 2 < verdicts["the same"]
