"""The measuring loop counts what it must, and nothing else, in lines of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math

import pytest

from harness.client.scaling_client import RankFile
from harness.run.aggregate import make_result
from harness.trial import measure
from harness.trial.rank_file import (
    RankFileError,
    one_line,
    rank_path,
    read_rank,
)
from results.records.models import Phase

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch):
    """Only tests of the collector use it: it looks at all objects of all tests."""
    if "collector" not in request.node.name:
        monkeypatch.setattr(measure, "quiet_collector", contextlib.nullcontext)


@dataclasses.dataclass
class Check:
    name: str
    is_passed: bool
    detail: str


@dataclasses.dataclass
class Count:
    name: str
    value: int


class FakeProgram:
    """Takes a second per step and two between steps; looks at the collector."""

    num_parameters = 3
    flops_per_example = 600
    compute_dtype = "bfloat16"
    per_replica_batch_size = 4
    global_batch_size = 8

    def __init__(self, clock, *, is_sane=True, bad_step=None):
        self.clock = clock
        self.bad_step = bad_step
        self.events = []
        self.is_sane = is_sane
        self.num_steps = 0
        self.num_evaluations = 0
        self.was_collecting = []

    def run(self, num_steps=1):
        self.clock.now += num_steps * SECOND
        self.num_steps += 1
        self.was_collecting.append(gc.isenabled())
        return 1.0 / self.num_steps

    def dispatch(self):
        self.clock.now += SECOND // 10
        self.num_steps += 1
        number = self.num_steps
        self.events.append(f"start {number}")

        def read():
            self.clock.now += SECOND
            self.events.append(f"read {number}")
            return math.nan if number == self.bad_step else 1.0 / number

        return read

    def losses_of_replicas(self):
        self.events.append("ask")
        return (1.0, math.nan)

    def save(self, directory):
        """Has nothing to keep."""

    def sanity(self):
        return (Check("in_sync", self.is_sane, "said so"),)

    def evaluate(self):
        self.num_evaluations += 1
        return ()

    def start_window(self):
        self.window_start = self.clock.now, self.num_steps

    def window_metrics(self):
        return (Count("steps", self.num_steps - self.window_start[1]),)

    def explain(self):
        return "all-reduce"


class FakeClock:
    now = 5 * SECOND

    def __call__(self):
        return self.now


class FakeMemory:
    """A peak; takes two seconds between steps."""

    method = "faked"

    def __init__(self, clock):
        self.clock = clock

    def start(self):
        """Does nothing."""

    def sample(self):
        self.clock.now += 2 * SECOND

    def peak_bytes(self):
        return 2**20


def measured(tmp_path, spec, **program_fields):
    clock = FakeClock()
    program = FakeProgram(clock, **program_fields)

    def build():
        clock.now += 10 * SECOND
        return program

    writer = RankFile(rank_path(tmp_path, 0), clock)
    measure.measure_trial(
        build,
        spec,
        writer,
        example_unit="images",
        memory=FakeMemory(clock),
        clock=clock,
        measure_peak=lambda dtype: (2e9, f"of {dtype}"),
    )
    writer.close()
    return program, read_rank(tmp_path, 0)


def test_steps_are_apart_by_phase(tmp_path, make_spec):
    _, log = measured(tmp_path, make_spec(num_warmup_steps=3, num_measured_steps=4))
    phases = [step.phase for step in log.steps]

    assert [Phase.FIRST_STEP] + [Phase.WARMUP] * 2 + [Phase.MEASURE] * 4 == phases
    assert list(range(7)) == [step.index for step in log.steps]
    assert {1.0} == {step.time_sec for step in log.steps}
    assert log.is_done
    assert log.phase is Phase.REPORT


def test_the_arithmetic_of_an_example_is_recorded(tmp_path, make_spec):
    """Or that it was not counted; records from before it existed have none."""
    spec = make_spec(num_warmup_steps=1, num_measured_steps=2)
    _, log = measured(tmp_path, spec)
    log.lines.pop("window_metric")

    assert 600 == make_result("0" * 20, spec, [log]).flops_per_example
    log.last("facts").pop("flops_per_example")
    assert make_result("0" * 20, spec, [log]).flops_per_example is None


def test_the_peak_rate_is_recorded(tmp_path, make_spec):
    """In the number type of the program; records from before it existed have none."""
    spec = make_spec(num_warmup_steps=1, num_measured_steps=2)
    _, log = measured(tmp_path, spec)
    log.lines.pop("window_metric")

    assert {"flops_per_sec": 2e9, "method": "of bfloat16"} == log.last("peak")
    (rank,) = make_result("0" * 20, spec, [log]).ranks
    assert rank.peak_flops_per_sec == 2e9
    log.lines.pop("peak")
    (rank,) = make_result("0" * 20, spec, [log]).ranks
    assert rank.peak_flops_per_sec is None


def test_steps_between_two_syncs_are_started_together(tmp_path, make_spec):
    """They share their time to the nanosecond; a last block may be shorter."""
    spec = make_spec(num_warmup_steps=2, num_measured_steps=5, steps_per_sync=3)
    program, log = measured(tmp_path, spec)

    assert program.events == [
        *(f"start {number}" for number in (3, 4, 5)),
        *(f"read {number}" for number in (3, 4, 5)),
        *(f"{what} {number}" for what in ("start", "read") for number in (6, 7)),
    ]
    steps = [step for step in log.steps if step.phase is Phase.MEASURE]
    assert [1.0 / number for number in range(3, 8)] == [step.loss for step in steps]
    assert [1.1] * 5 == pytest.approx([step.time_sec for step in steps], abs=2e-9)
    assert [step.end_ns for step in steps[:2]] == [s.start_ns for s in steps[1:3]]
    assert int(3.3 * SECOND) == steps[2].end_ns - steps[0].start_ns


def test_a_bad_loss_between_two_syncs_is_named_when_it_is_read(tmp_path, make_spec):
    """Before the next loss is read, whose replicas would be the ones that are asked."""
    spec = make_spec(num_warmup_steps=1, num_measured_steps=3, steps_per_sync=3)
    program, log = measured(tmp_path, spec, bad_step=3)

    assert ["read 2", "read 3", "ask", "read 4"] == program.events[-4:]
    (check,) = (c for c in log.all("sanity") if c["name"] == "every_loss_is_finite")
    assert check["detail"] == "nan in step 2, seen by replica 1 of 2"


def test_what_a_program_counts_is_of_the_measured_window(tmp_path, make_spec):
    """It begins right before the first measured step, and ends after the last."""
    program, log = measured(
        tmp_path, make_spec(num_warmup_steps=3, num_measured_steps=4)
    )

    assert [{"name": "steps", "value": 4}] == log.all("window_metric")
    assert (log.steps[3].start_ns, 3) == program.window_start


def test_one_warmup_step_is_the_first_step(tmp_path, make_spec):
    """There is always a step before the window."""
    _, log = measured(tmp_path, make_spec(num_warmup_steps=1, num_measured_steps=2))

    assert [Phase.FIRST_STEP, Phase.MEASURE, Phase.MEASURE] == [
        step.phase for step in log.steps
    ]


def test_what_runs_before_warmup_is_in_no_figure(tmp_path, make_spec):
    """A matrix product on the GPUs takes 100 s here; the program is in memory then."""
    clock = FakeClock()
    program = FakeProgram(clock)
    seen = []

    def multiply():
        clock.now += 100 * SECOND
        seen.append((program.num_steps, hasattr(program, "window_start")))

    writer = RankFile(rank_path(tmp_path, 0), clock)
    measure.measure_trial(
        lambda: program,
        make_spec(num_warmup_steps=3, num_measured_steps=4),
        writer,
        example_unit="images",
        memory=FakeMemory(clock),
        clock=clock,
        before_warmup=multiply,
    )
    writer.close()
    log = read_rank(tmp_path, 0)

    assert [(1, False)] == seen
    assert 1 == log.last("first_step_done")["time_to_first_step_sec"]
    assert {1.0} == {step.time_sec for step in log.steps}
    assert 7 == len(log.steps)


def test_time_to_first_step_has_build_and_step(tmp_path, make_spec):
    """Ten seconds of build and one of step, and no more."""
    _, log = measured(tmp_path, make_spec())

    assert log.last("first_step_done")["time_to_first_step_sec"] == 11.0


def test_the_collector_is_off_in_the_window_only(tmp_path, make_spec):
    assert gc.isenabled()
    was_frozen = gc.get_freeze_count() > 0
    program, _ = measured(tmp_path, make_spec(num_warmup_steps=2, num_measured_steps=3))

    assert [True, True, False, False, False] == program.was_collecting
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    if was_frozen:  # as processes of tests are, which makes those that follow quick
        gc.freeze()


@pytest.mark.parametrize(
    ("is_evaluated", "is_sane", "expected"), [(1, 1, 1), (0, 1, 0), (1, 0, 0)]
)
def test_quality_is_measured_when_asked_and_sane(
    tmp_path, make_spec, is_evaluated, is_sane, expected
):
    """The quality of an insane program is not a result either."""
    spec = make_spec(is_evaluated=bool(is_evaluated))
    program, log = measured(tmp_path, spec, is_sane=bool(is_sane))

    assert expected == program.num_evaluations
    assert [True, bool(is_sane)] == [check["is_passed"] for check in log.all("sanity")]


def test_a_program_with_another_batch_is_refused(tmp_path, make_spec):
    """The spec says what is measured; a program that differs is not measured."""
    spec = make_spec(num_replicas=1, per_replica_batch_size=4, global_batch_size=4)
    with pytest.raises(ValueError, match=r"has global_batch_size 8, the trial 4"):
        measured(tmp_path, spec)


def test_a_cut_last_line_is_skipped(tmp_path, make_spec):
    """A killed process leaves what it had."""
    measured(tmp_path, make_spec())
    path = rank_path(tmp_path, 0)
    whole = path.read_text()
    path.write_text(whole[:-5])
    log = read_rank(tmp_path, 0)

    assert not log.is_done
    assert len(log.steps) == 6


def test_non_finite_losses_survive_strict_json(tmp_path):
    """The file stays standard JSON."""
    writer = RankFile(rank_path(tmp_path, 0), FakeClock())
    for index, loss in enumerate((float("nan"), float("-inf"), 0.5)):
        writer.step(index, 0, 1, loss)
    writer.close()
    lines = rank_path(tmp_path, 0).read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["kind"] == "step"]

    assert ["nan", "-inf", 0.5] == [step["loss"] for step in steps]
    assert read_rank(tmp_path, 0).steps[1].loss == float("-inf")


@pytest.mark.parametrize("line", ["{", '{"kind": "wat"}', '{"kind": "step"}', "[]"])
def test_a_broken_line_is_named(tmp_path, line):
    """A complete line that is malformed is an error, not a gap."""
    rank_path(tmp_path, 0).write_text(f'{{"kind": "done", "ns": 1}}\n{line}\n')
    with pytest.raises(RankFileError, match=r"rank_0.jsonl line 2 is malformed"):
        read_rank(tmp_path, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\nb", "a"), ("\n  a  \n", "a"), ("", ""), ("x" * 900, "x" * 497 + "...")],
)
def test_reasons_are_one_line(text, expected):
    """The rest is in the traceback."""
    assert expected == one_line(text)
