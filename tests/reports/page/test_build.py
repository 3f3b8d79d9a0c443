"""A report has the sections that its study has something for."""

import re

from reports.page import build


def test_a_study_of_quality_runs_only_has_no_figure_of_throughput(tmp_path, synthetic):
    """As that of a gate on quality; nothing is empty, and learning is there."""
    shape = synthetic.Shape(
        repeats=0, budget=synthetic.LEARNING, num_learning_runs=3, replicas=(2,)
    )
    page = build.build_report(synthetic.make_store(tmp_path, shape))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page, re.DOTALL)

    assert any("Learning" in title for title in titles)
    assert not any(
        name in title
        for name in ("Scaling", "Step times", "memory")
        for title in titles
    )
