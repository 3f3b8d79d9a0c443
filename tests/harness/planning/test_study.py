"""A study is resumed or extended by what fits, and refuses what does not."""

import re

import pytest
from command_lines import overridden
from fake_machine import with_cpus

from harness import ExitCode
from results import Store, planned_trial

BASE = (
    *("--workload=resnet50", "--preset=smoke", "--replicas=1,2", "--mode=weak"),
    *("--repeats=2", "--budget=none", "--order=sequential", "--study=s"),
)
FOUR_CORES = with_cpus(range(4))


@pytest.fixture
def sweep(harness, monkeypatch, tmp_path):
    monkeypatch.setattr("harness.run.sweep.run_trials", lambda *_: None)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)

    def run(*changes):
        words = overridden(BASE, *changes)
        code, _, err = harness("sweep", *words, overrides=FOUR_CORES)
        if code == ExitCode.USAGE:
            return None, err
        assert ExitCode.NOTHING_MEASURED == code, err
        return Store(tmp_path / "runs" / "s").read_plan(), err

    return run


def ids_of(plan):
    return [trial.trial_id for trial in plan.trials]


def test_the_same_or_less_resumes_and_keeps_the_plan(sweep, tmp_path):
    """An empty folder can become a study: there is nothing to lose in it."""
    (tmp_path / "runs" / "s").mkdir(parents=True)
    first, _ = sweep()
    for changes in ((), ("--repeats=1",)):
        again, err = sweep(*changes)

        assert first.trials == again.trials
        assert "study s: resumed" in err


ALL_BACKENDS = "--backends=in_graph,tf_mirrored,single"


@pytest.mark.parametrize(
    ("first", "more"),
    [
        ((), ("--repeats=5",)),
        # Cores per replica follow from the largest N: only a full machine extends.
        (("--replicas=1,2,4",), ("--replicas=1,2,4,8",)),
        ((), (ALL_BACKENDS,)),
        ((), ("--mode=weak,strong",)),
        (("--no-match",), (ALL_BACKENDS,)),
    ],
)
def test_more_of_the_same_extends(sweep, first, more):
    before, _ = sweep(*first)
    extended, err = sweep(*more)
    num_added = len(extended.trials) - len(before.trials)

    assert ids_of(before) == ids_of(extended)[: len(before.trials)]
    assert 0 < num_added == len({*ids_of(extended)} - {*ids_of(before)})
    assert f"study s: extended by {num_added} trials to" in err
    modes = {t.modes for t in extended.trials if t.spec.num_replicas == 1}
    assert {len(more[0].split(",")) if "--mode" in more[0] else 1} == {*map(len, modes)}
    if first == ("--no-match",):  # reasons stay only where nothing is compared
        compared = {trial.spec.num_replicas for trial in extended.equivalence.trials}
        assert ({1, 2}, {}) == (compared, extended.equivalence.not_checked)


# What both sweeps have, what the second one changes, and what is said. A control would
# have no blocks beside the others.
OTHER = r"""
| --set=seed=1 -> study 's' was made with seed 0, this sweep has 1
| --preset=laptop -> with preset 'smoke', this sweep has 'laptop'
| --data=synthetic -> with data 'digits', this sweep has 'synthetic'
| --steps=+9 -> with num_measured_steps 4, this .* has 9
| --replicas=2,4 -> with (cores_per_replica|baseline_num_replicas)
| --per-replica-batch-size=8 -> with weak per_replica_batch_size 4, this sweep has 8
--mode=strong | --global-batch-size=8 -> with strong global_batch_size 4, this .* has 8
--order=interleaved | --controls=nosync -> 's' is an inter.* without control 'nosync' of
"""


@pytest.mark.parametrize("row", OTHER.strip().splitlines())
def test_another_setting_is_refused_by_name(sweep, row):
    words, _, message = row.partition(" -> ")
    both, changes = (part.split() for part in words.split("|", 1))
    assert sweep(*both)[0]
    made, err = sweep(*both, *changes)

    assert made is None
    assert re.search(message, err), err


def test_a_study_in_sequence_has_no_controls_and_says_so(sweep, harness):
    sweep()
    words = [word for word in BASE if not word.startswith("--order")]
    words.append("--controls=nosync,independent")
    _, _, err = harness("sweep", *words, overrides=FOUR_CORES)

    assert (
        "no controls (nosync, independent): they need an interleaved measurement\n"
        in err
    )


def test_where_data_is_belongs_to_the_plan_but_not_to_its_trials(
    sweep, tmp_path, monkeypatch
):
    plans = []
    for folder in (None, "here", "there"):
        if folder:
            monkeypatch.setenv("TFDS_DATA_DIR", folder)
        plans.append(sweep()[0])

    assert [None, str(tmp_path / "here"), str(tmp_path / "there")] == [
        plan.data_dir for plan in plans
    ]
    assert ids_of(plans[0]) == ids_of(plans[1]) == ids_of(plans[2])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, r"study 's' has no trials, so there is nothing to resume; run a sweep"),
        ({"workload": "vgg"}, r"unknown workload 'vgg'"),
        ({"backend": "nccl"}, r"unknown backend 'nccl'"),
        (
            {"backend": "single"},
            r"has 2 replicas on backend 'single', which runs at mo",
        ),
        ({"per_replica_batch_size": 9}, r"weak scaling with per_replica.* 4 and 9"),
    ],
)
def test_a_plan_that_cannot_be_continued_here_is_one_line(
    sweep, refuse, tmp_path, fields, message
):
    plan, _ = sweep()
    spec = plan.trials[1].spec.model_copy(update=fields)
    changed = planned_trial(spec, plan.trials[1].modes)
    trials = (plan.trials[0], changed, *plan.trials[2:]) if fields else ()
    Store(tmp_path / "runs" / "s").write_plan(
        plan.model_copy(update={"trials": trials})
    )
    is_extended = fields is not None and "per_replica_batch_size" in fields
    err = refuse("sweep", *(BASE if is_extended else ("--study", "s")))

    assert re.search(message, err), err
