"""Scaling and comparisons: definitions, baselines, flags, and what is refused."""

import math

import pytest

import results
from results import ScalingMode, Store, TrialStatus, figures, planned_trial, statistics

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _point(points, backend, mode, n):
    (point,) = [
        point
        for point in points
        if (point.backend, point.mode, point.num_replicas) == (backend, mode, n)
    ]
    return point


@pytest.fixture(scope="module")
def study(make):
    """Two backends in both modes at one, two and four replicas; two cores."""
    return results.load_study(make(replicas=(1, 2, 4), noise=0.001))


@pytest.fixture(scope="module")
def points(study):
    return figures.points(study)


def _geometric_mean(case):
    rates = [entry.result.examples_per_sec for entry in case.ok_entries]
    return math.prod(rates) ** (1 / len(rates))


def test_speedup_and_efficiency_follow_their_definitions(points):
    base, two = (_point(points, "in_graph", WEAK, n) for n in (1, 2))
    expected = _geometric_mean(two.case) / _geometric_mean(base.case)

    assert expected == pytest.approx(two.speedup.value)
    assert expected / 2 == pytest.approx(two.efficiency.value)
    assert two.speedup.low / 2 == pytest.approx(two.efficiency.low)
    assert two.speedup.n == 3
    assert base.is_baseline
    assert base.speedup is None
    strong = _point(points, "in_graph", STRONG, 1)  # both modes share the baseline
    assert (base.case.case_id, base.throughput) == (
        strong.case.case_id,
        strong.throughput,
    )
    assert {4} == {p.num_replicas for p in points if p.is_oversubscribed}


def test_the_efficiency_of_the_best_is_relative_to_the_fastest_baseline(points):
    best = _point(points, "in_graph", WEAK, 1)
    slow, two = (_point(points, "tf_mirrored", WEAK, n) for n in (1, 2))
    expected = _geometric_mean(two.case) / _geometric_mean(best.case) / 2

    assert best.efficiency_of_best is None
    assert best.best_baseline is best.case
    assert expected == pytest.approx(two.efficiency_of_best.value)
    assert two.efficiency_of_best.has_interval
    assert two.efficiency_of_best.value < two.efficiency.value
    assert slow.efficiency_of_best.value < 1


def test_baseline_of_two_replicas_scales_from_two(make):
    fields = {"replicas": (2, 4), "modes": (WEAK,), "backends": ("in_graph",)}
    points = figures.points(results.load_study(make(**fields)))
    two, four = (_point(points, "in_graph", WEAK, n) for n in (2, 4))
    ratio = _geometric_mean(four.case) / _geometric_mean(two.case)

    assert 2 * ratio == pytest.approx(four.speedup.value)
    assert ratio / 2 == pytest.approx(four.efficiency.value)
    assert four.efficiency == four.efficiency_of_best


def test_trials_that_are_not_ok_do_not_count(make):
    statuses = {
        **{("in_graph", WEAK, 1, k): TrialStatus.FAILED for k in range(3)},
        ("tf_mirrored", WEAK, 2, 1): TrialStatus.FAILED_CHECKS,
    }
    loaded = results.load_study(make(statuses=statuses))
    points = figures.points(loaded)
    two, other = (_point(points, of, WEAK, 2) for of in ("in_graph", "tf_mirrored"))
    (failed_checks,) = [
        entry for entry in loaded.entries if entry.state == "failed_checks"
    ]

    assert two.throughput is not None
    assert two.speedup is None
    assert two.missing_reason == "no trial of the baseline (n = 1) is ok"
    assert _point(points, "in_graph", WEAK, 1).throughput is None
    assert failed_checks.trial.result is not None
    assert failed_checks not in other.case.shown_entries
    assert other.throughput.n == 2
    assert "unpaired" in other.speedup.method


def test_backends_are_compared_once_per_pair_of_cases(study):
    found = figures.compare_backends(study)

    assert [(1, (WEAK, STRONG)), (2, (WEAK,)), (2, (STRONG,))] == [
        (item.first.spec.num_replicas, item.modes) for item in found
    ][:3]
    assert all(item.first.spec.backend == "in_graph" for item in found)
    assert found[1].ratio.value == pytest.approx(
        _geometric_mean(found[1].first) / _geometric_mean(found[1].second)
    )


def _mislabelled(plan):
    """Strong scaling that is planned as weak scaling."""
    return [trial.model_copy(update={"modes": (WEAK,)}) for trial in plan.trials]


def _of_two_settings(plan):
    """A study varies backends, modes and replicas only."""
    spec = plan.trials[0].spec.model_copy(update={"preset": "gpu"})
    return [*plan.trials, planned_trial(spec, plan.trials[0].modes)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_mislabelled, r"planned as weak scaling with per_replica_batch_size 4, its"),
        (_of_two_settings, "has two cases for backend 'in_gr"),
    ],
)
def test_a_plan_that_is_no_scaling_study_is_refused(
    tmp_path, synthetic, change, message
):
    shape = synthetic.Shape(modes=(STRONG,), repeats=1)
    store = synthetic.make_store(tmp_path, shape)
    plan = store.read_plan()
    store.write_plan(plan.model_copy(update={"trials": tuple(change(plan))}))

    with pytest.raises(results.ResultsError, match=message):
        figures.points(results.load_study(store))


def test_states_of_a_broken_study(tmp_path, synthetic):
    store = synthetic.make_store(tmp_path)
    plan = store.read_plan()
    ids = [trial.trial_id for trial in plan.trials]
    for path in sorted(store.trial_dir(ids[0]).iterdir()):
        path.unlink()
    (store.trial_dir(ids[1]) / "status.json").unlink()
    (store.trial_dir(ids[2]) / "result.json").write_text("{")
    store.write_plan(plan.model_copy(update={"trials": plan.trials[:-1]}))
    loaded = results.load_study(Store.open(store.root))
    states = [entry.state for entry in loaded.entries]

    assert states[:4] == ["missing", "unfinished", "corrupt", "ok"]
    assert [ids[-1]] == [entry.trial_id for entry in loaded.entries if not entry.modes]
    assert loaded.entries[2].reason.startswith("result.json: not JSON")
    assert [problem.path.name for problem in loaded.problems] == ["result.json"]
    assert ids[-1] not in {
        entry.trial_id
        for point in figures.points(loaded)
        for entry in point.case.entries
    }


def p_value(item):
    """Of the ratio 1, over repetitions of what both sides have."""
    logs = []
    for entries in zip(item.first.ok_entries, item.second.ok_entries, strict=True):
        here, there = (
            entry.result.rates or {0: entry.result.examples_per_sec}
            for entry in entries
        )
        logs.append([math.log(here[r] / there[r]) for r in here.keys() & there.keys()])
    return statistics.mean_of_rounds(logs).p_value()


@pytest.mark.parametrize(
    ("noise", "version", "p_values", "expected"),
    [
        (0.5, "25", [0.036, 0.035], [False, False]),
        (0.4, "21", [0.146, 0.022], [False, True]),
    ],
)
def test_a_difference_must_hold_among_all_ratios(
    make, noise, version, p_values, expected
):
    """The version draws other noise: chosen for these p-values."""
    fields = {"modes": (WEAK,), "noise": noise, "workload_version": version}
    found = figures.compare_backends(results.load_study(make(**fields)))

    assert p_values == pytest.approx([*map(p_value, found)], abs=5e-4)
    assert [2, 2] == [item.num_compared for item in found]
    assert expected == [item.holds for item in found]


@pytest.mark.parametrize("num_rounds", [0, 4])
def test_what_holds_is_also_outside_its_own_interval(make, num_rounds):
    fields = {"noise": 0.02, "repeats": 4, "num_rounds": num_rounds}
    found = figures.compare_backends(results.load_study(make(**fields)))

    for item in found:
        value = p_value(item)
        assert item.ratio.excludes(1.0) == (value < 0.05)
        assert not item.holds or item.ratio.excludes(1.0)
