"""How large a page is, by the number of trials; benchmarks/bench_report.py has more."""

import pytest

from reports.page import build

SIZES = (1, 2, 4, 8, 16, 32, 64)
BACKENDS = ("single", "in_graph", "tf_mirrored", "multi_worker")


@pytest.mark.parametrize(
    ("least_trials", "most_bytes", "settings"),
    [
        (95, 700_000, {"replicas": (1, 2, 4, 8), "repeats": 7}),
        pytest.param(
            300,
            1_500_000,
            {
                "backends": BACKENDS,
                "replicas": SIZES,
                "baseline_batch_size": 64,
                "repeats": 5,
                "num_learning_runs": 5,
            },
            marks=pytest.mark.full,
        ),
    ],
    ids=["100 trials", "310 trials"],
)
def test_a_page_stays_small(tmp_path, synthetic, least_trials, most_bytes, settings):
    """A page that is sent by mail or opened on a phone; the full run has a larger."""
    budget = synthetic.LEARNING if "num_learning_runs" in settings else None
    store = synthetic.make_store(tmp_path, synthetic.Shape(budget=budget, **settings))

    assert len(store.trial_ids()) >= least_trials
    assert len(build.build_report(store).encode()) <= most_bytes
