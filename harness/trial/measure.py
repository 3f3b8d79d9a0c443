"""The measuring loop: builds, steps, checks; independent of TensorFlow and wall time.

What is timed: each step between two clock reads, the second after all device work is
done (``StepProgram.run`` promises that). The window reaches from the start of the first
measured step to the end of the last, so what happens between steps counts too.

Python's garbage collector runs before the window, and is frozen and off within it:
a collection is not part of the measured work, and would delay single steps at random.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from harness.client.scaling_client import PROTOCOL, quiet_collector, turns
from harness.trial import steps as steps_lib
from harness.trial.steps import Steps
from results.records.models import Allocator, Control, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from harness.client.scaling_client import Channel, RankFile
    from results.records.models import TrialSpec
    from workloads.program import StepProgram

    RunCounted: TypeAlias = Callable[[Callable[[], int]], Iterable[Mapping[str, Any]]]


# In a relay (``docs/measuring.md``) the processes of several cases are alive at once.
# Each connects to the harness, says what it has reached, and waits for the next command
# on a socket, without using a core. The messages are those of every program that takes
# part in a study: ``docs/client_protocol.md`` describes them, and
# ``harness/client/scaling_client.py`` sends them.

__all__ = ["COMPATIBLE", "PROTOCOL"]

COMPATIBLE: Final = (2, PROTOCOL)
"""Versions that both sides of a gate may have: 2 does not say which version it is."""


def measure_trial(
    build: Callable[[], StepProgram],
    spec: TrialSpec,
    writer: RankFile,
    *,
    example_unit: str,
    memory: Any,
    clock: Callable[[], int] = time.monotonic_ns,
    channel: Channel | None = None,
    count_traces: Callable[[], int] = lambda: 0,
    measure_peak: Callable[[str], tuple[float, str]] | None = None,
    before_warmup: Callable[[], None] = lambda: None,
    run_counted: RunCounted | None = None,
) -> None:
    """Runs one trial in this process and writes all observations.

    ``memory`` measures the peak of the window, as ``ResidentMemory`` does.
    """
    is_alone = channel is None or channel.enter()
    writer.enter(Phase.BUILD)
    build_start_ns = clock()
    program = build()
    _check_batches(program, spec)
    writer.write(
        "facts",
        num_parameters=program.num_parameters,
        flops_per_example=program.flops_per_example,
        example_unit=example_unit,
        global_batch_size=program.global_batch_size,
    )
    steps = Steps(program, writer, clock, spec)
    writer.enter(Phase.FIRST_STEP)
    first_end_ns = steps.run()
    writer.write(
        "first_step_done",
        time_to_first_step_sec=(first_end_ns - build_start_ns) / 1e9,
        is_alone=is_alone,
    )
    writer.enter(Phase.WARMUP)
    before_warmup()
    reservation = _warm_up(program, steps, spec, channel, writer, run_counted)
    if measure_peak is not None and program.flops_per_example:
        peak, method = measure_peak(program.compute_dtype)
        writer.write("peak", flops_per_sec=peak, method=method)
    writer.enter(Phase.MEASURE)
    with quiet_collector():
        memory.start()
        program.start_window()
        if channel is None:
            assert spec.num_measured_steps is not None
            for num_steps in steps.blocks(spec.num_measured_steps):
                steps.run(num_steps)
                memory.sample()
        else:
            program.pause()  # background work, such as actors, except in turns
            warm_sec = steps.step_time_sec[-1]
            for turn in turns(channel, writer, memory, clock, warm_sec):
                program.resume()
                num_traces = count_traces()
                turn.begin()
                turn.end(steps.run(turn.num_steps), count_traces() - num_traces)
                program.pause()
        peak_memory_bytes = memory.peak_bytes() - reservation.unused_bytes()
    writer.write("memory", peak_memory_bytes=peak_memory_bytes, method=memory.method)
    for metric in program.window_metrics():
        writer.write("window_metric", **steps_lib.fields_of(metric))
    quality = None
    if spec.budget is not None:
        writer.enter(Phase.TRAIN)
        quality = steps_lib.train(program, spec.budget, steps, writer)
    writer.enter(Phase.SANITY)
    is_sane = _check_sanity(program, steps, writer)
    writer.enter(Phase.REPORT)
    writer.write("explain", collectives=program.explain())
    if spec.is_evaluated and is_sane:
        if quality is None:
            quality = [steps_lib.fields_of(metric) for metric in program.evaluate()]
        for fields in quality:
            writer.write("quality", **fields)
    writer.write("done", ns=clock())


def _check_batches(program: StepProgram, spec: TrialSpec) -> None:
    for name in ("per_replica_batch_size", "global_batch_size"):
        got, expected = getattr(program, name), getattr(spec, name)
        if spec.control is Control.SOLO:  # one of several programs with one replica
            expected = spec.per_replica_batch_size
        if got != expected:
            raise ValueError(f"the program has {name} {got}, the trial {expected}")


def _warm_up(
    program: StepProgram,
    steps: Steps,
    spec: TrialSpec,
    channel: Channel | None,
    writer: RankFile,
    run_counted: RunCounted | None,
) -> steps_lib.Reservation:
    """Runs warm-up steps, in a relay the last one when the harness says so."""
    reservation = steps_lib.Reservation()
    num_steps = spec.num_warmup_steps - 1  # the first one was timed alone
    for _ in range(num_steps - 1):
        steps.run()
    if channel is not None:
        program.pause()
        command = channel.ask("built")
        if spec.allocator is Allocator.KEEP and spec.device == "cpu":
            reservation = steps_lib.reserve(command["heap_fraction"])
        program.resume()
    if num_steps and run_counted is not None:
        for count in run_counted(steps.run):
            writer.write("window_metric", **count)
    elif num_steps:
        steps.run()
    return reservation


def _check_sanity(program: StepProgram, steps: Steps, writer: RankFile) -> bool:
    bad_loss = steps.bad_loss
    writer.write(
        "sanity",
        name="every_loss_is_finite",
        is_passed=not bad_loss,
        detail=bad_loss or f"{steps.num_steps} losses, all steps",
    )
    is_sane = not bad_loss
    for check in program.sanity():
        writer.write("sanity", **steps_lib.fields_of(check))
        is_sane = is_sane and check.is_passed
    return is_sane
