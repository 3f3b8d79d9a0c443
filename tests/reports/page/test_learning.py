"""Learning curves over environment steps, and runs with several seeds."""

import pytest

from reports.exports import text
from reports.page.sections import counts, learning, seeds
from reports.view.view import view_store
from reports.words import formats, ratio_table
from results.statistics import run_scores


@pytest.fixture(scope="module")
def view(tmp_path_factory, synthetic):
    shape = synthetic.Shape(
        backends=("in_graph",),
        budget=synthetic.LEARNING,
        num_learning_runs=5,
        has_actors=True,
    )
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("study"), shape))


@pytest.fixture(scope="module")
def section(view):
    return str(learning.render(view))


def test_runs_of_a_case_are_scored_together(view):
    """What the records say is what the score is made of."""
    (runs,) = ratio_table.collect_quality_runs(view).values()
    found = seeds.collect(runs, view.study.metrics)

    assert [1, 2] == [case.case.spec.num_replicas for case in found]
    for case in found:
        reached = [
            entry.result.curve[-1].quality[0].value for entry in case.case.ok_entries
        ]
        assert sorted(reached) == sorted(case.reached)
        assert run_scores.score({"digits": case.reached}) == case.score
        assert 5 == case.score.n


def test_the_legend_has_the_backends_of_the_figure(tmp_path, synthetic):
    """One whose quality runs failed is in no legend of theirs."""
    failed = {
        ("tf_mirrored", mode, n, repetition): synthetic.TrialStatus.FAILED
        for mode in synthetic.Shape().modes
        for n in (1, 2)
        for repetition in range(3)
    }
    shown = {}
    for name, statuses in (("all", {}), ("some", failed)):
        shape = synthetic.Shape(budget=synthetic.LEARNING, statuses=statuses)
        store = synthetic.make_store(tmp_path / name, shape)
        legend = learning.render(view_store(store)).partition('"legend"')[2]
        shown[name] = legend.partition("</ul>")[0]

    assert "in_graph</li>" in shown["all"]
    assert "tf_mirrored</li>" in shown["all"]
    assert "in_graph</li>" in shown["some"]
    assert "tf_mirrored</li>" not in shown["some"]


def test_environment_steps_and_seeds_are_shown(tmp_path, synthetic, section):
    shape = synthetic.Shape(budget=synthetic.LEARNING)
    plain = learning.render(view_store(synthetic.make_store(tmp_path, shape)))

    assert "environment steps of all actors" in section
    assert "Seeds together" in section
    assert "learning-0-profile" in section
    assert run_scores.TRIMMED_T.partition(":")[0] in section
    assert "learning-0-time" in plain
    assert "environment steps of all actors" not in plain
    assert "Seeds together" not in plain


def test_counts_of_the_window_have_a_column_per_case(view):
    found = counts.collect(view)
    section = counts.render(view)

    assert ["environment_steps_per_sec", "actor_idle_share"] == list(found)
    assert len(found["actor_idle_share"]) == len(view.measured_cases)
    for case in found["environment_steps_per_sec"]:
        assert sum(case.values) / len(case.trial_ids) == pytest.approx(case.mean)
    assert formats.percent(0.25) in section
    rows, columns = section.count('scope="row"'), section.count('scope="col"')
    assert (len(found), 1 + len(view.measured_cases)) == (rows, columns)
    assert section.count("environment steps/s") == 1


def test_runs_of_a_case_are_distinguished(view, section):
    """Page and terminal name the repetition, and what all of a case reached."""
    lines = text.quality_lines(view)

    for replicas in (1, 2):
        for index in range(5):
            start = f"in_graph x{replicas}, repetition {index}, reached "
            assert 1 == sum(line.startswith(start) for line in lines)
        start = f"in_graph x{replicas}, 5 runs: {run_scores.TRIMMED_MEAN}, "
        assert 1 == sum(line.startswith(start) for line in lines)
    assert 12 == len(lines)
    assert "repetition 4" in section


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (861.67, 861.99, ("861.8 return", "[861.7, 862.0]")),
        (640.0, 862.0, ("862 return", "[640, 862]")),
        (861.83, 861.83, ("862 return", "[862, 862]")),
        (861.829999, 861.830001, ("861.830 return", "[861.830, 861.830]")),
    ],
)
def test_an_interval_has_the_digits_that_tell_its_ends(low, high, texts):
    """At least three, at most six; the value has as many."""
    found = formats.quality_with_interval(861.83, low, high, "return")
    assert texts == tuple(part.replace(formats.HARD_SPACE, " ") for part in found)


def test_ratios_keep_their_percentages():
    """However narrow the interval is."""
    value, interval = formats.quality_with_interval(0.9, 0.89, 0.91, "ratio")
    assert formats.percent(0.9) == value
    assert f"[89,{formats.HARD_SPACE}91]" == interval


def test_what_more_replicas_change_is_in_the_section(section):
    assert "in_graph: what more replicas change" in section
    assert "which runs with 1 replica reached at the end: not their median" in section
    assert "reached by 5 of 5 runs" in section


def test_the_terminal_says_what_intervals_of_quality_are_over(view):
    """Not over runs with other seeds."""
    lines = [line for line in text.quality_lines(view) if " reached " in line]

    assert lines
    assert all("(n = 359, interval over test images)" in line for line in lines)
