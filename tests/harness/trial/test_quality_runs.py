"""Quality runs: how long they train, what they record, and what ends them."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest
from command_lines import overridden, smoke_sweep

from harness import ExitCode
from harness.trial import measure as steps_lib
from results import Budget, BudgetUnit, Store

pytestmark = pytest.mark.usefixtures("forked_trials")


Metric = dataclasses.make_dataclass("Metric", ["name", "value"])


@dataclasses.dataclass
class FakeProgram:
    """Steps take half a second each; the others may have another opinion."""

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


@pytest.mark.parametrize(
    ("unit", "amount", "num_evaluations", "other", "expected"),
    [
        (BudgetUnit.STEPS, 100, 4, None, [25, 50, 75, 100]),
        (BudgetUnit.EXAMPLES, 400, 4, None, [13, 25, 38, 50]),
        (BudgetUnit.SECONDS, 10.0, 4, None, [6, 11, 16, 21]),
        # All processes train the steps that the first one says: with clocks of their
        # own they would come to different ends, and wait for ever.
        (BudgetUnit.SECONDS, 10.0, 2, 7, [10, 17]),
        # Where it is used up, every point is a step after the one before.
        (BudgetUnit.STEPS, 2, 3, None, [4, 5, 6]),
    ],
)
def test_evaluations_split_the_budget_evenly(
    tmp_path, make_spec, unit, amount, num_evaluations, other, expected
):
    points, saved_after = [], []
    writer = SimpleNamespace(
        directory=tmp_path, write=lambda _, **fields: points.append(fields)
    )
    program = FakeProgram(other=other)
    program.save = lambda _: saved_after.append(steps.num_steps)
    steps = steps_lib.Steps(program, writer, None, make_spec())
    # The first of three steps traces: ten times as long.
    steps.step_time_sec += [5.0, 0.5, 0.5]
    steps.run = lambda: steps.step_time_sec.append(0.5)
    budget = Budget(amount=amount, unit=unit, num_evaluations=num_evaluations)
    steps_lib.train(program, budget, steps, writer)

    assert expected == [point["num_steps"] for point in points] == saved_after
    assert [8 * number for number in expected] == [p["num_examples"] for p in points]
    assert [0.5 * (n - 1) for n in expected] == [p["train_time_sec"] for p in points]
    for number, point in enumerate(points, start=1):
        assert 10 * number == point["num_environment_steps"]
        assert [{"name": "top_1", "value": float(number)}] == point["quality"]


NUM_STEPS = 20
SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1,2 --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=20steps --study=s"
)


def left_text(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"({minutes} min {seconds:02} s left)" if minutes else f"({seconds} s left)"


@pytest.fixture
def trained(harness, overrides, tmp_path):
    def run(*options):
        code, _, err = harness(*overridden(SWEEP, *options), overrides=overrides)
        trials = list(Store.open(tmp_path / "runs" / "s").trials())
        found = [trial for trial in trials if trial.spec.budget is not None]
        # No quality run was finished yet, but its case was measured.
        rates = {
            trial.spec.num_replicas: trial.result.examples_per_sec
            for trial in trials
            if trial.spec.budget is None
        }
        specs = [trial.spec for trial in found]
        left_sec = sum(
            30 + NUM_STEPS * spec.global_batch_size / rates[spec.num_replicas]
            for spec in specs
        )
        first = next(line for line in err.splitlines() if " run of " in line)
        assert first.endswith(left_text(left_sec))
        return code, found

    return run


def test_a_quality_run_records_its_curve(trained, tmp_path):
    code, trials = trained()

    assert ExitCode.OK == code
    assert {1, 2} == {trial.spec.num_replicas for trial in trials}
    for trial in trials:
        result = trial.result
        assert [10, 20] == [point.num_steps for point in result.curve]
        assert 20 * 4 * trial.spec.num_replicas == result.curve[-1].num_examples
        assert 4 == len(result.ranks[0].step_time_sec)
        assert 20 == len(result.ranks[0].losses)
        assert result.quality == result.curve[-1].quality
        names = [point.samples for point in result.curve]
        folder = tmp_path / "runs" / "s" / "trials" / trial.trial_id
        assert ["samples_00000010.png", "samples_00000020.png"] == names
        assert b"picture after 20" == (folder / names[-1]).read_bytes()
        assert 1 - 3 / 20 == result.quality[0].value
        assert not (folder / "checkpoint").exists()


NAN = (
    "the loss became nan in step {step}, seen by replica 1 of 2, in training: lower "
    "the learning rate, or check the data of that step; "
)
KEPT = (
    "the last good checkpoint, after 10 steps, is trials/{id}/checkpoint/ckpt-1 in the "
    "study"
)
NONE_YET = "there is no checkpoint: none was due before this step"


@pytest.mark.parametrize(
    ("behavior", "budget", "step", "reason"),
    [
        ("late_nan", "20steps", 8, NAN + NONE_YET),
        ("last_nan", "160examples", 14, NAN + KEPT),
        (
            *("bad_weights", "20steps", None),
            "variable 'stem/kernel' is not finite; " + KEPT,
        ),
    ],
)
def test_a_value_that_is_no_number_ends_a_quality_run(
    monkeypatch, trained, tmp_path, behavior, budget, step, reason
):
    monkeypatch.setenv("FAKE_BEHAVIOR", f"in_graph:2:{behavior}")
    code, (trial,) = trained("--replicas=2", f"--budget={budget}")
    failure = trial.status.failure

    assert ExitCode.SOME_TRIALS_FAILED == code
    assert ("train", "FloatingPointError") == (
        failure.phase.value,
        failure.exception_type,
    )
    assert reason.format(id=trial.trial_id, step=step) == failure.reason
    if "ckpt-1" in reason:
        folder = tmp_path / "runs" / "s" / "trials" / trial.trial_id
        kept = folder / "checkpoint" / "ckpt-1.index"
        assert "10" == kept.read_text(encoding="utf-8")


def test_trials_look_for_data_where_the_sweep_did(
    harness, overrides, tmp_path, monkeypatch
):
    seen = tmp_path / "seen"
    code = "import os, sys; open(sys.argv[1], 'a').write(os.environ['TFDS_DATA_DIR'])"
    command = (sys.executable, "-S", "-c", code, str(seen))
    overrides = {**overrides, "worker_command": command}
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    interleaved = ("--budget=none", "--replicas=1", "--order=interleaved")
    harness(*overridden(SWEEP, *interleaved), overrides=overrides)
    monkeypatch.delenv("TFDS_DATA_DIR")
    harness("sweep", "--study", "s", "--retry=failed", overrides=overrides)

    # A case and its A/A control, before and after.
    assert 4 * str(tmp_path / "sets") == seen.read_text(encoding="utf-8")
