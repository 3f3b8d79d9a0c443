"""A study is resumed or extended by what fits, and refuses what does not."""

import pytest

from harness.errors import DifferentStudyError, PlanError, StudyError
from harness.planning import checked, plan, study
from harness.planning.request import SweepRequest
from results.records.models import Order, ScalingMode

MACHINE = checked.Machine(num_available_cores=4)
BASE = SweepRequest(
    workload="resnet50",
    preset="smoke",
    replicas=(1, 2),
    modes=(ScalingMode.WEAK,),
    order=Order.SEQUENTIAL,
)


def plan_of(**changes):
    request = BASE.model_copy(update=changes)
    planned = plan.plan_sweep(request, MACHINE)
    return study.make_plan(planned, request, study="s", command=("harness",))


def ids_of(made):
    return [trial.trial_id for trial in made.trials]


def test_the_same_request_resumes_unchanged():
    first = plan_of()
    reconciled = plan.reconcile(first, plan_of())

    assert first == reconciled.plan
    assert not reconciled.is_changed
    assert reconciled.note == "study s: resumed"


def test_fewer_repeats_resume_and_keep_the_plan():
    first, fewer = plan_of(), plan_of(repeats=1)
    reconciled = plan.reconcile(first, fewer)

    assert first == reconciled.plan
    assert ids_of(fewer) == [trial.trial_id for trial in reconciled.asked]


@pytest.mark.parametrize(
    "changes",
    [
        {"repeats": 5},
        {"replicas": (1, 2, 4)},
        {"backends": ("in_graph", "tf_mirrored", "single")},
        {"modes": (ScalingMode.WEAK, ScalingMode.STRONG)},
    ],
)
def test_more_of_the_same_extends(changes):
    if "replicas" in changes:
        # Cores per replica follow from the largest N: only a full machine extends.
        changes = {"replicas": (1, 2, 4, 8)}
        first = plan_of(replicas=(1, 2, 4))
    else:
        first = plan_of()
    more = plan_of(**changes)
    reconciled = plan.reconcile(first, more)

    assert ids_of(first) == ids_of(reconciled.plan)[: len(first.trials)]
    assert set(ids_of(first)) | set(ids_of(more)) == set(ids_of(reconciled.plan))
    assert reconciled.is_changed
    assert "extended by" in reconciled.note


def test_an_added_mode_is_added_to_the_shared_baseline():
    """The baseline's trials are reused, and serve both modes from now on."""
    both = (ScalingMode.WEAK, ScalingMode.STRONG)
    reconciled = plan.reconcile(plan_of(), plan_of(modes=both))
    baselines = [t for t in reconciled.plan.trials if t.spec.num_replicas == 1]

    assert {both} == {trial.modes for trial in baselines}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"made with seed 0, this sweep has 1"),
        ({"preset": "laptop"}, r"made with preset 'smoke', this sweep has 'laptop'"),
        ({"data": "synthetic"}, r"made with data 'digits', this sweep has 'synthetic'"),
        ({"steps": (None, 9)}, r"made with num_measured_steps 4, this .* has 9"),
        ({"replicas": (2, 4)}, r"made with (cores_per_replica|baseline_num_replicas)"),
        (
            {"per_replica_batch_size": 8},
            r"made with weak per_replica_batch_size 4, this sweep has 8",
        ),
    ],
)
def test_another_setting_is_refused_by_name(changes, message):
    with pytest.raises(DifferentStudyError, match=message):
        plan.reconcile(plan_of(), plan_of(**changes))


def test_another_strong_batch_is_refused_by_name():
    """Strong scaling's constant is a setting of the study."""
    modes = (ScalingMode.STRONG,)
    with pytest.raises(
        DifferentStudyError, match=r"strong global_batch_size 4, .* has 8"
    ):
        plan.reconcile(plan_of(modes=modes), plan_of(modes=modes, global_batch_size=8))


def test_the_default_name_is_that_of_the_same_sweep():
    """The same command resumes itself, another one does not collide."""
    names = [
        study.default_name(checked.check(BASE.model_copy(update={"seed": s}), MACHINE))
        for s in (0, 0, 1)
    ]

    assert names[0] == names[1] != names[2]
    assert names[0].startswith("resnet50-smoke-")


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", "-x", "a" * 101, "."])
def test_a_study_name_cannot_leave_the_runs_directory(name):
    with pytest.raises(StudyError, match=r"is not a study name; allowed are up to 100"):
        study.check_name(name)


def test_a_study_is_found_by_name_or_by_path(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "b").mkdir()

    assert tmp_path / "runs/a" == study.find_study("a", tmp_path / "runs")
    assert tmp_path / "b" == study.find_study(str(tmp_path / "b"), tmp_path / "runs")
    assert tmp_path / "runs/c" == study.find_study("c", tmp_path / "runs")


def test_an_empty_directory_can_become_a_study(tmp_path):
    """There is nothing to lose in it."""
    assert study.read_existing_plan(tmp_path) is None


def test_where_data_is_belongs_to_the_plan_but_not_to_its_trials(tmp_path, monkeypatch):
    """The same trials run where the sets have moved to; resuming finds them again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    plain = plan_of()
    monkeypatch.setenv("TFDS_DATA_DIR", "here")
    first = plan_of()
    monkeypatch.setenv("TFDS_DATA_DIR", "there")
    moved = plan_of()
    reconciled = plan.reconcile(first, moved)

    assert str(tmp_path / "here") == first.data_dir
    assert plain.data_dir is None
    assert ids_of(first) == ids_of(moved) == ids_of(plain)
    assert str(tmp_path / "there") == reconciled.plan.data_dir


def test_resuming_an_empty_plan_is_reported(small_plan):
    """Nothing was requested."""
    with pytest.raises(StudyError, match=r"'small' has no trials, so there is no"):
        study.check_trials(small_plan.model_copy(update={"trials": ()}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": "vgg"}, r"unknown workload 'vgg'"),
        ({"backend": "nccl"}, r"unknown backend 'nccl'"),
        (
            {"backend": "single"},
            r"has 2 replicas on backend 'single', which runs at mo",
        ),
    ],
)
def test_resuming_what_cannot_be_started_here_is_reported_before(
    small_plan, fields, message
):
    trial = small_plan.trials[1]
    changed = trial.model_copy(update={"spec": trial.spec.model_copy(update=fields)})
    plan = small_plan.model_copy(update={"trials": (small_plan.trials[0], changed)})
    with pytest.raises(PlanError, match=message):
        study.check_trials(plan)


def test_adding_to_a_plan_of_two_batch_sizes_is_refused(small_plan):
    """Weak scaling keeps the batch of a replica; such a plan was not made here."""
    trial = small_plan.trials[0]
    spec = trial.spec.model_copy(update={"per_replica_batch_size": 9})
    trials = (*small_plan.trials[1:], trial.model_copy(update={"spec": spec}))
    with pytest.raises(
        DifferentStudyError, match=r"weak scaling with per_replica_batch_size 4 and 9"
    ):
        plan.reconcile(small_plan.model_copy(update={"trials": trials}), small_plan)
