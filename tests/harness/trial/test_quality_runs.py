"""Quality runs: what is planned, how long they train, what they record."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from command_words import overridden, smoke_sweep

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.errors import ParseError, PlanError
from harness.planning import checked, plan, settings
from harness.planning.request import SweepRequest
from harness.trial import steps as steps_lib
from results.records.models import Budget, BudgetUnit, ScalingMode
from results.store.study_store import Store

pytestmark = pytest.mark.usefixtures("forked_trials")

TWO_CORES = checked.Machine(num_available_cores=2)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("60s", 60, BudgetUnit.SECONDS),
        ("1.5min", 90, BudgetUnit.SECONDS),
        ("2h", 7200, BudgetUnit.SECONDS),
        ("500steps", 500, BudgetUnit.STEPS),
        (" 20000 examples", 20_000, BudgetUnit.EXAMPLES),
    ],
)
def test_a_budget_is_an_amount_and_a_unit(text, amount, unit):
    """Minutes and hours are seconds."""
    expected = Budget(amount=amount, unit=unit, num_evaluations=3)

    assert expected == settings.parse_budget(text, num_evaluations=3)


@pytest.mark.parametrize(
    ("text", "is_evaluated", "has_runs"),
    [
        ("none", False, False),
        ("window", True, False),
        ("60s", None, True),
        ("60s,window", True, True),
        ("window, 60s", True, True),
    ],
)
def test_a_budget_says_what_measures_quality(text, is_evaluated, has_runs):
    """Quality runs, the windows of all trials, both, or nothing."""
    assert is_evaluated is settings.is_evaluated(text)
    assert has_runs == (settings.parse_budget(text, num_evaluations=3) is not None)


@pytest.mark.parametrize(
    "text", ["60", "s", "0s", "-5s", "3 epochs", "1e3s", "none,window", "1s,2s", "1s,"]
)
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ParseError, match=r"--budget '.*' is not a budget; allowed are"):
        settings.parse_budget(text, num_evaluations=3)


def plan_of(**fields):
    return plan.plan_sweep(SweepRequest(workload="resnet50", **fields), TWO_CORES)


def quality_trials(planned):
    return [t.spec for t in planned.trials if t.spec.budget is not None]


def test_the_default_sweep_ends_with_quality_runs_of_its_first_backend():
    planned = plan_of()
    specs = quality_trials(planned)

    assert [("in_graph", 1, 8), ("in_graph", 2, 8)] == [
        (spec.backend, spec.num_replicas, spec.global_batch_size) for spec in specs
    ]
    assert specs == [trial.spec for trial in planned.trials[-2:]]
    assert any(
        "quality runs: in_graph x1, in_graph x2 for 40 seconds each, strong" in note
        for note in planned.notes
    )


def test_a_budget_that_is_asked_for_is_given_to_every_backend():
    specs = quality_trials(plan_of(budget="300steps", quality_repeats=2))

    assert 2 * 2 * 2 == len(specs)
    assert {Budget(amount=300, unit=BudgetUnit.STEPS, num_evaluations=5)} == {
        spec.budget for spec in specs
    }
    assert 2 == len({(spec.repetition_index, spec.seed) for spec in specs})


def test_without_strong_scaling_the_weak_cases_are_trained():
    """There is always something to train."""
    specs = quality_trials(plan_of(modes=(ScalingMode.WEAK,)))

    assert [8, 16] == [spec.global_batch_size for spec in specs]


@pytest.mark.parametrize(
    "fields",
    [{"budget": "none"}, {"budget": "window"}, {"data": "synthetic"}],
)
def test_quality_runs_can_be_left_out(fields):
    """By name, and where there is nothing to measure."""
    assert not quality_trials(plan_of(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "synthetic"}, r"--budget 60s: the data set 'synthetic' has nothing"),
        ({"timeout_sec": 200.0}, r"may not end within --timeout 200 s.*--timeout 210s"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(fields, message):
    """A request is never dropped silently."""
    with pytest.raises(PlanError, match=message):
        plan_of(budget="60s", **fields)


@dataclasses.dataclass
class Metric:
    name: str
    value: float


@dataclasses.dataclass
class FakeProgram:
    """Steps take a time each; the others may have another opinion."""

    step_time_sec: float
    global_batch_size: int = 8
    said: list[int] = dataclasses.field(default_factory=list)
    other: int | None = None

    def evaluate(self):
        return [Metric("top_1", float(len(self.said)))]

    def samples(self):
        """Makes no pictures."""

    def num_environment_steps(self):
        """Returns ten for each time it was given a limit."""
        return 10 * len(self.said)

    def agree(self, value):
        self.said.append(value)
        return value if self.other is None else self.other


def train(program, budget, num_before):
    progress = steps_lib.TrainingProgress(
        # The first step traces: ten times as long, and not counted.
        step_time_sec=[10 * program.step_time_sec]
        + [program.step_time_sec] * (num_before - 1),
        global_batch_size=program.global_batch_size,
    )
    points = []
    saved_after = []
    steps_lib.train(
        program,
        budget,
        progress,
        lambda: progress.step_time_sec.append(program.step_time_sec),
        lambda **fields: points.append(fields),
        lambda name, content: pytest.fail(f"{name} of {content}"),
        lambda: saved_after.append(progress.num_steps),
    )
    # A checkpoint at every point.
    assert saved_after == [point["num_steps"] for point in points]
    return points


@pytest.mark.parametrize(
    ("unit", "amount", "steps"),
    [
        (BudgetUnit.STEPS, 100, [25, 50, 75, 100]),
        (BudgetUnit.EXAMPLES, 400, [13, 25, 38, 50]),
        (BudgetUnit.SECONDS, 10.0, [6, 11, 16, 21]),
    ],
)
def test_evaluations_split_the_budget_evenly(unit, amount, steps):
    """Steps before the training count too, and the first step's time does not."""
    budget = Budget(amount=amount, unit=unit, num_evaluations=4)

    points = train(FakeProgram(step_time_sec=0.5), budget, num_before=3)

    assert steps == [point["num_steps"] for point in points]
    assert [8 * n for n in steps] == [point["num_examples"] for point in points]
    assert [0.5 * (n - 1) for n in steps] == [
        point["train_time_sec"] for point in points
    ]
    assert [10, 20, 30, 40] == [point["num_environment_steps"] for point in points]
    assert [{"name": "top_1", "value": 4.0}] == points[-1]["quality"]


def test_all_processes_train_the_steps_that_the_first_one_says():
    """With clocks of their own they would come to different ends, and wait for ever."""
    budget = Budget(amount=10.0, unit=BudgetUnit.SECONDS, num_evaluations=2)

    points = train(FakeProgram(step_time_sec=0.5, other=7), budget, num_before=3)

    assert [10, 17] == [point["num_steps"] for point in points]


def test_a_budget_that_is_used_up_still_gives_different_models():
    """Every point is at least one step after the one before."""
    budget = Budget(amount=2, unit=BudgetUnit.STEPS, num_evaluations=3)

    points = train(FakeProgram(step_time_sec=0.5), budget, num_before=3)

    assert [4, 5, 6] == [point["num_steps"] for point in points]


QUALITY_SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1,2 --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=20steps --study=s"
)


def test_a_quality_run_records_its_curve(overrides, tmp_path):
    """Beside its throughput; the last point is the quality of the trial.

    No checkpoint is left, which are as large as the model.
    """
    code = cli.main((*QUALITY_SWEEP, f"--runs-dir={tmp_path}"), run_overrides=overrides)
    trials = {
        trial.spec.num_replicas: trial
        for trial in Store.open(tmp_path / "s").trials()
        if trial.spec.budget is not None
    }

    assert exit_codes.OK == code
    assert {1, 2} == set(trials)
    for num_replicas, trial in trials.items():
        result = trial.result
        assert [10, 20] == [point.num_steps for point in result.curve]
        assert 20 * 4 * num_replicas == result.curve[-1].num_examples
        assert 4 == len(result.ranks[0].step_time_sec)
        assert 20 == len(result.ranks[0].losses)
        assert result.quality == result.curve[-1].quality
        names = [point.samples for point in result.curve]
        folder = tmp_path / "s" / "trials" / trial.trial_id
        assert ["samples_00000010.png", "samples_00000020.png"] == names
        assert b"picture after 20" == (folder / names[-1]).read_bytes()
        assert 1 - 3 / 20 == result.quality[0].value
        assert not (folder / "checkpoint").exists()


_NAN = (
    "the loss became nan in step {step}, seen by replica 1 of 2, in training: lower "
    "the learning rate, or check the data of that step; "
)
_KEPT = (
    "the last good checkpoint, after 10 steps, is trials/{id}/checkpoint/ckpt-1 in the "
    "study"
)
_NONE_YET = "there is no checkpoint: none was due before this step"


@pytest.mark.parametrize(
    ("behavior", "step", "reason"),
    [
        ("late_nan", 8, _NAN + _NONE_YET),
        ("last_nan", 14, _NAN + _KEPT),
        ("bad_weights", None, "variable 'stem/kernel' is not finite; " + _KEPT),
    ],
)
def test_a_value_that_is_no_number_ends_a_quality_run(
    monkeypatch, overrides, tmp_path, behavior, step, reason
):
    monkeypatch.setenv("FAKE_BEHAVIOR", f"in_graph:2:{behavior}")
    options = (f"--runs-dir={tmp_path}", "--replicas=2")
    code = cli.main(overridden(QUALITY_SWEEP, *options), run_overrides=overrides)
    store = Store.open(tmp_path / "s")
    (trial,) = [of for of in store.trials() if of.spec.budget is not None]
    checkpoint = store.trial_dir(trial.trial_id) / "checkpoint"
    failure = trial.status.failure

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert ("train", "FloatingPointError") == (
        failure.phase.value,
        failure.exception_type,
    )
    assert reason.format(id=trial.trial_id, step=step) == failure.reason
    if "ckpt-1" in reason:
        assert "10" == (checkpoint / "ckpt-1.index").read_text(encoding="utf-8")


def test_trials_look_for_data_where_the_sweep_did(overrides, tmp_path, monkeypatch):
    """Also those of a study that is resumed without saying it again."""
    (tmp_path / "sets").mkdir()
    seen = tmp_path / "seen"
    code = "import os, sys; open(sys.argv[1], 'a').write(os.environ['TFDS_DATA_DIR'])"
    command = (sys.executable, "-c", code, str(seen))
    overrides = {**overrides, "worker_command": command}
    arguments = (
        f"--runs-dir={tmp_path}",
        "--budget=none",
        "--replicas=1",
        "--order=relay",
    )
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    cli.main(overridden(QUALITY_SWEEP, *arguments), run_overrides=overrides)
    monkeypatch.delenv("TFDS_DATA_DIR")
    cli.main(
        ("sweep", "--study", "s", f"--runs-dir={tmp_path}", "--retry=failed"),
        run_overrides=overrides,
    )

    # A case and its twin, before and after.
    assert 4 * str(tmp_path / "sets") == seen.read_text(encoding="utf-8")
