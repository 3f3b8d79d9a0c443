"""The measuring loop, and what a trial reads of its machine, in lines of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import time

import pytest
from study_files import lines_of

from harness.client.scaling_client import (
    RESET_METHOD,
    SAMPLED_METHOD,
    RankFile,
    ResidentMemory,
    rank_path,
)
from harness.trial import measure
from results import Phase

SECOND = 1_000_000_000


Check = dataclasses.make_dataclass("Check", ["name", "is_passed", "detail"])
Count = dataclasses.make_dataclass("Count", ["name", "value"])


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


@pytest.fixture
def measured(tmp_path, make_spec, monkeypatch):
    def run(num_warmup=2, num_measured=4, *, is_collecting=True, program=None, **spec):
        if is_collecting:  # it looks at all objects of all tests
            monkeypatch.setattr(measure, "quiet_collector", contextlib.nullcontext)
        clock = FakeClock()
        made = FakeProgram(clock, **program or {})
        seen = []

        def build():
            clock.now += 10 * SECOND
            return made

        def multiply():  # a matrix product on the GPUs
            clock.now += 100 * SECOND
            seen.append((made.num_steps, hasattr(made, "window_start")))

        path = rank_path(tmp_path, 0)
        writer = RankFile(path, clock)
        measure.measure_trial(
            build,
            make_spec(
                num_warmup_steps=num_warmup, num_measured_steps=num_measured, **spec
            ),
            writer,
            example_unit="images",
            memory=FakeMemory(clock),
            clock=clock,
            measure_peak=lambda dtype: (2e9, f"of {dtype}"),
            before_warmup=multiply,
        )
        writer.close()
        # The program is in memory then; nothing is counted yet.
        assert [(1, False)] == seen
        return made, functools.partial(lines_of, path)

    return run


def test_steps_are_timed_alone_and_by_phase(measured):
    program, log = measured(num_warmup=3, num_measured=4)
    steps = log("step")
    phases = [Phase(step["phase"]) for step in steps]

    assert [Phase.FIRST_STEP] + [Phase.WARMUP] * 2 + [Phase.MEASURE] * 4 == phases
    assert list(range(7)) == [step["index"] for step in steps]
    assert {SECOND} == {step["end_ns"] - step["start_ns"] for step in steps}
    assert log("done")
    assert Phase.REPORT.value == log("phase")[-1]["phase"]
    # Ten seconds of build and one of step, and no more.
    assert [11.0] == [of["time_to_first_step_sec"] for of in log("first_step_done")]
    (counted,) = log("window_metric")
    assert ("steps", 4) == (counted["name"], counted["value"])
    assert (steps[3]["start_ns"], 3) == program.window_start


def test_arithmetic_and_peak_rate_are_recorded(measured):
    _, log = measured(num_warmup=1, num_measured=2)

    # There is always a step before the window.
    assert ["first_step", "measure", "measure"] == [of["phase"] for of in log("step")]
    (peak,) = log("peak")
    assert (2e9, "of bfloat16") == (peak["flops_per_sec"], peak["method"])
    assert [600] == [facts["flops_per_example"] for facts in log("facts")]


def test_steps_between_two_syncs_are_started_together(measured):
    program, log = measured(num_measured=5, steps_per_sync=3)

    assert program.events == [
        *(f"start {number}" for number in (3, 4, 5)),
        *(f"read {number}" for number in (3, 4, 5)),
        *(f"{what} {number}" for what in ("start", "read") for number in (6, 7)),
    ]
    steps = [step for step in log("step") if step["phase"] == "measure"]
    starts, ends = ([step[name] for step in steps] for name in ("start_ns", "end_ns"))
    assert [1.0 / number for number in range(3, 8)] == [step["loss"] for step in steps]
    times = [(end - start) / SECOND for start, end in zip(starts, ends, strict=True)]
    assert [1.1] * 5 == pytest.approx(times, abs=2e-9)
    assert ends[:2] == starts[1:3]
    assert int(3.3 * SECOND) == ends[2] - starts[0]


def test_a_bad_loss_between_two_syncs_is_named_when_it_is_read(measured):
    program, log = measured(1, 3, steps_per_sync=3, program={"bad_step": 3})

    assert ["read 2", "read 3", "ask", "read 4"] == program.events[-4:]
    (check,) = (c for c in log("sanity") if c["name"] == "every_loss_is_finite")
    assert "nan in step 2, seen by replica 1 of 2" == check["detail"]


def test_the_collector_is_off_in_the_window_only(measured):
    assert gc.isenabled()
    was_frozen = gc.get_freeze_count() > 0
    program, _ = measured(num_measured=3, is_collecting=False)

    assert [True, True, False, False, False] == program.was_collecting
    assert gc.isenabled()
    assert 0 == gc.get_freeze_count()
    if was_frozen:  # as processes of tests are, which makes those that follow quick
        gc.freeze()


@pytest.mark.parametrize(
    ("is_evaluated", "program", "expected"),
    [
        (True, {"is_sane": True}, 1),
        (False, {"is_sane": True}, 0),
        (True, {"is_sane": False}, 0),
        (True, {"bad_step": 3}, 0),
    ],
)
def test_quality_is_measured_when_asked_and_sane(
    measured, is_evaluated, program, expected
):
    made, log = measured(is_evaluated=is_evaluated, program=program, steps_per_sync=2)

    assert expected == made.num_evaluations
    assert ["bad_step" not in program, made.is_sane] == [
        check["is_passed"] for check in log("sanity")
    ]


def test_a_program_with_another_batch_is_refused(measured):
    sizes = {"per_replica_batch_size": 4, "global_batch_size": 4}
    with pytest.raises(ValueError, match=r"has global_batch_size 8, the trial 4"):
        measured(num_replicas=1, **sizes)


def fake_proc(tmp_path, peak_kib, size_kib):
    (tmp_path / "status").write_text(
        f"Name:\tx\nVmHWM:\t{peak_kib} kB\nVmRSS:\t{size_kib} kB\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("before", "sizes", "method"),
    [
        # After the reset, the mark is the kernel's.
        (100, [(300, 200)], RESET_METHOD),
        # Without one, a mark from before the window would be a wrong number.
        (900, [(900, 300), (900, 200)], SAMPLED_METHOD),
    ],
)
def test_peak_memory_is_of_the_window(tmp_path, before, sizes, method):
    probe = ResidentMemory(fake_proc(tmp_path, before, 100))
    probe.start()
    for size in sizes:
        fake_proc(tmp_path, *size)
        probe.sample()

    assert method == probe.method
    assert 300 * 1024 == probe.peak_bytes()
    assert "5" == (tmp_path / "clear_refs").read_text()


def test_the_real_peak_is_seen_and_forgotten():
    probe = ResidentMemory()
    before = bytearray(200 * 2**20)
    before[::4096] = b"x" * len(before[::4096])
    del before
    probe.start()
    base = probe.peak_bytes()
    inside = bytearray(64 * 2**20)
    inside[::4096] = b"x" * len(inside[::4096])
    probe.sample()

    assert 40 * 2**20 < probe.peak_bytes() - base < 120 * 2**20


def test_a_rate_is_recorded_for_each_device(tmp_path):
    import tensorflow as tf

    def write_tflops(*arguments, **sizes):
        rank_path(tmp_path, 0).unlink(missing_ok=True)
        writer = RankFile(rank_path(tmp_path, 0), time.monotonic_ns)
        measure.write_tflops(writer, *arguments, **sizes)
        writer.close()
        return lines_of(rank_path(tmp_path, 0), "gpu_canary")

    tf.random.set_seed(7)
    expected = tf.random.uniform([3]).numpy().tolist()
    tf.random.set_seed(7)
    (line,) = write_tflops(["CPU:0", "CPU:0"], size=64, duration_sec=0.01)

    assert expected == tf.random.uniform([3]).numpy().tolist()
    assert 2 == len(line["tflops"])
    assert all(0 < rate < 100 for rate in line["tflops"])
    # Trials on CPUs, and processes that coordinate.
    assert [] == write_tflops([])
