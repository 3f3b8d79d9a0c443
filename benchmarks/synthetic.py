"""Makes a store of a study that nobody measured, with plausible figures.

Benchmarks and tests use it: it is fast, seeded, and can be as large and as broken as
wanted. Figures follow a fixed table of throughputs with lognormal noise.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from results import identity
from results.records import (
    Budget,
    BudgetUnit,
    Environment,
    Failure,
    Phase,
    Placement,
    Plan,
    PlannedTrial,
    QualityMetric,
    QualityPoint,
    RankTimes,
    SanityCheck,
    ScalingMode,
    StatusRecord,
    TrialResult,
    TrialSpec,
    TrialStatus,
)
from results.store import Store

if TYPE_CHECKING:
    import pathlib

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
BASE_BATCH = 8
NUM_CORES = 2
SHARE_OF_SLOW_STEPS = 0.08

# Images per second on two cores by backend, mode and number of replicas.
THROUGHPUT = {
    ("single", WEAK, 1): 26.3,
    ("in_graph", WEAK, 1): 26.1,
    ("in_graph", WEAK, 2): 47.2,
    ("in_graph", WEAK, 4): 48.0,
    ("in_graph", STRONG, 2): 41.0,
    ("in_graph", STRONG, 4): 33.5,
    ("tf_mirrored", WEAK, 1): 24.9,
    ("tf_mirrored", WEAK, 2): 37.4,
    ("tf_mirrored", WEAK, 4): 29.9,
    ("tf_mirrored", STRONG, 2): 31.2,
    ("tf_mirrored", STRONG, 4): 21.0,
}
START_SEC = {"single": 6.0, "in_graph": 7.5, "tf_mirrored": 14.0}

TRACEBACK = """Traceback (most recent call last):
  File "harness/worker.py", line 88, in main
    program = workload.build(replicator, **options)
  File "workloads/resnet50/workload.py", line 41, in build
    raise ValueError("<script>alert('unescaped')</script>")
ValueError: <script>alert('unescaped')</script>
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """How large and how broken the study is.

    Attributes:
      backends: In planned order.
      modes: In planned order.
      replicas: Ascending; the first is the baseline.
      repeats: Repetitions per case.
      num_measured_steps: Steps in the measured window.
      statuses: Trials that are not ok, by (backend, mode, replicas, repetition); the
        value None leaves the trial out of the store.
      fingerprints: Machines, dealt to trials in turn.
      is_evaluated: Whether top-1 is recorded.
      budget: Of the quality runs of the strong cases, first repetition; None for none.
      noise: Standard deviation of log throughput between repetitions.
    """

    backends: tuple[str, ...] = ("in_graph", "tf_mirrored")
    modes: tuple[ScalingMode, ...] = (WEAK, STRONG)
    replicas: tuple[int, ...] = (1, 2)
    repeats: int = 3
    num_measured_steps: int = 16
    statuses: dict[tuple[str, ScalingMode, int, int], TrialStatus | None] = (
        dataclasses.field(default_factory=dict)
    )
    fingerprints: tuple[str, ...] = ("5f0c3a1be2d94c7788aa",)
    is_evaluated: bool = True
    noise: float = 0.012
    budget: Budget | None = None


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Returns the 95 % Wilson interval of a proportion."""
    z = 1.959964
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return centre - half, centre + half


def _spec(
    backend: str,
    mode: ScalingMode,
    num_replicas: int,
    repetition: int,
    shape: Shape,
    budget: Budget | None = None,
) -> TrialSpec:
    per_replica = BASE_BATCH if mode is WEAK else max(1, BASE_BATCH // num_replicas)
    return TrialSpec(
        workload="resnet50",
        workload_version="1",
        code_digest="c0de" * 5,
        preset="laptop",
        data="digits",
        backend=backend,
        num_replicas=num_replicas,
        per_replica_batch_size=per_replica,
        global_batch_size=per_replica * num_replicas,
        cores_per_replica=1,
        num_warmup_steps=3,
        num_measured_steps=shape.num_measured_steps,
        is_evaluated=shape.is_evaluated or budget is not None,
        budget=budget,
        repetition_index=repetition,
        seed=1000 + repetition,
    )


def _throughput(spec: TrialSpec, mode: ScalingMode) -> float:
    key = (spec.backend, mode, spec.num_replicas)
    weak = THROUGHPUT.get((spec.backend, WEAK, spec.num_replicas))
    return THROUGHPUT.get(key) or weak or 40.0 * spec.num_replicas**0.5


def _quality(generator: np.random.Generator, share: float) -> QualityMetric:
    correct = int(generator.binomial(359, share))
    low, high = wilson(correct, 359)
    return QualityMetric(
        name="top_1",
        value=correct / 359,
        unit="",
        num_examples=359,
        low=low,
        high=high,
        method="Wilson score interval",
    )


def _curve(
    generator: np.random.Generator, spec: TrialSpec, step_sec: float
) -> tuple[QualityPoint, ...]:
    """Quality that comes closer to 97 % with every example."""
    budget = spec.budget
    assert budget is not None
    points = []
    for number in range(1, budget.num_evaluations + 1):
        num_steps = math.ceil(budget.amount * number / budget.num_evaluations)
        num_examples = num_steps * spec.global_batch_size
        share = 0.97 - 0.87 * math.exp(-num_examples / 700)
        points.append(
            QualityPoint(
                num_steps=num_steps,
                num_examples=num_examples,
                train_time_sec=(num_steps - 1) * step_sec,
                quality=(_quality(generator, share),),
                samples=f"samples_{num_steps:08}.png",
            )
        )
    return tuple(points)


def _result(
    spec: TrialSpec, mode: ScalingMode, trial_id: str, shape: Shape
) -> TrialResult:
    generator = np.random.default_rng(int(trial_id[:15], 16))
    # All cases of one repetition drift together, as on a shared machine.
    drift = np.random.default_rng(spec.seed).normal(0, shape.noise)
    rate = _throughput(spec, mode) * math.exp(
        drift + generator.normal(0, shape.noise / 2)
    )
    step = spec.global_batch_size / rate
    times = step * np.exp(generator.normal(0, 0.03, spec.num_measured_steps))
    times += (
        step
        * generator.exponential(0.15, times.size)
        * (generator.random(times.size) < SHARE_OF_SLOW_STEPS)
    )
    start = START_SEC.get(spec.backend, 9.0) * spec.num_replicas**0.6
    start *= math.exp(generator.normal(0, 0.05))
    window = float(times.sum()) * 1.002
    quality = _quality(generator, 0.31)
    curve = _curve(generator, spec, step) if spec.budget is not None else ()
    if curve:
        (quality,) = curve[-1].quality
    return TrialResult(
        trial_id=trial_id,
        example_unit="images",
        num_parameters=23_528_522,
        global_batch_size=spec.global_batch_size,
        num_measured_steps=spec.num_measured_steps,
        window_sec=window,
        ranks=(
            RankTimes(
                rank=0,
                time_to_first_step_sec=start,
                warmup_step_time_sec=(start * 0.6, step * 1.4, step * 1.1),
                step_time_sec=tuple(float(value) for value in times),
                window_start_ns=0,
                window_end_ns=int(window * 1e9),
                losses=tuple(2.4 - 0.01 * k for k in range(spec.num_measured_steps)),
                peak_memory_bytes=int((1.1 + 0.55 * spec.num_replicas) * 2**30),
            ),
        ),
        sanity=(SanityCheck(name="finite_loss", is_passed=True, detail="all finite"),),
        quality=(quality,) if spec.is_evaluated else (),
        curve=curve,
        collectives="214 all_mean in 3 buckets over 2 owners",
    )


def _environment(spec: TrialSpec, fingerprint: str) -> Environment:
    is_oversubscribed = spec.num_replicas > NUM_CORES
    cores = tuple(range(min(spec.num_replicas, NUM_CORES)))
    return Environment(
        fingerprint=fingerprint,
        cpu_model="Synthetic CPU @ 2.00GHz",
        num_physical_cores=NUM_CORES,
        num_logical_cores=NUM_CORES,
        memory_bytes=24 * 2**30,
        kernel="Linux 6.1",
        python_version="3.11.9",
        packages={"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"},
        load_average_before=0.4,
        load_average_after=1.7,
        canary_before_sec=0.2,
        canary_after_sec=0.2,
        placement=Placement(
            cpusets=(cores,),
            cores_per_replica=1,
            num_intra_op_threads=1,
            num_inter_op_threads=spec.num_replicas,
            num_available_cores=NUM_CORES,
            is_oversubscribed=is_oversubscribed,
            device_sharing="shared",
        ),
    )


FAILURES = {
    TrialStatus.FAILED: Failure(
        phase=Phase.BUILD,
        reason="ValueError: <script>alert('unescaped')</script>",
        exception_type="ValueError",
        traceback=TRACEBACK,
    ),
    TrialStatus.TIMEOUT: Failure(
        phase=Phase.MEASURE, reason="no end after 300 s; process tree was killed"
    ),
    TrialStatus.OUT_OF_MEMORY: Failure(
        phase=Phase.FIRST_STEP, reason="the kernel killed the process (SIGKILL)"
    ),
    TrialStatus.INSANE: Failure(
        phase=Phase.SANITY, reason="replicas_in_sync: replica 1 differs by 3e-2"
    ),
    TrialStatus.SKIPPED: Failure(
        phase=Phase.LAUNCH, reason="the backend runs one replica only"
    ),
}
# One grey pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
HAS_RESULT = {TrialStatus.OK, TrialStatus.INSANE}


def _write_pictures(store: Store, result: TrialResult) -> None:
    for point in result.curve:
        (store.trial_dir(result.trial_id) / point.samples).write_bytes(PICTURE)


def make_store(root: pathlib.Path, shape: Shape | None = None) -> Store:
    """Writes a whole study under ``root`` and opens it."""
    shape = shape or Shape()
    planned: dict[str, tuple[TrialSpec, list[ScalingMode]]] = {}
    for repetition in range(shape.repeats):
        cases = [
            (backend, mode, num_replicas)
            for num_replicas in shape.replicas
            for mode in shape.modes
            for backend in shape.backends
            if backend != "single" or num_replicas == 1
        ]
        for backend, mode, num_replicas in cases[:: -1 if repetition % 2 else 1]:
            spec = _spec(backend, mode, num_replicas, repetition, shape)
            _, modes = planned.setdefault(identity.trial_id(spec), (spec, []))
            modes.append(mode)
    if shape.budget is not None:
        mode = STRONG if STRONG in shape.modes else WEAK
        for backend, num_replicas in itertools.product(shape.backends, shape.replicas):
            if backend != "single" or num_replicas == 1:
                spec = _spec(backend, mode, num_replicas, 0, shape, shape.budget)
                planned[identity.trial_id(spec)] = (spec, [mode])
    # In the order of the sweep, whichever repetition came first.
    for trial_id, (spec, modes) in planned.items():
        ordered = [mode for mode in shape.modes if mode in modes]
        planned[trial_id] = (spec, ordered)
    store = Store.create(root)
    store.write_plan(
        Plan(
            study="resnet50-laptop-synthetic",
            created_at="2025-01-01T00:00:00Z",
            command=("python", "-m", "harness", "sweep", "--workload", "resnet50"),
            baseline_num_replicas=shape.replicas[0],
            repeats=shape.repeats,
            seed=7,
            timeout_sec=300,
            trials=tuple(
                PlannedTrial(
                    trial_id=trial_id,
                    case_id=identity.case_id(spec),
                    modes=tuple(modes),
                    spec=spec,
                )
                for trial_id, (spec, modes) in planned.items()
            ),
        )
    )
    for index, (trial_id, (spec, modes)) in enumerate(planned.items()):
        key = (spec.backend, modes[0], spec.num_replicas, spec.repetition_index)
        status = shape.statuses.get(key, TrialStatus.OK)
        if status is None:
            continue
        fingerprint = shape.fingerprints[index % len(shape.fingerprints)]
        store.write_spec(trial_id, spec)
        store.write_env(trial_id, _environment(spec, fingerprint))
        if status in HAS_RESULT:
            result = _result(spec, modes[0], trial_id, shape)
            store.write_result(trial_id, result)
            _write_pictures(store, result)
        store.write_status(
            trial_id,
            StatusRecord(
                trial_id=trial_id,
                status=status,
                started_at=f"2025-01-01T00:{index // 60 % 60:02}:{index % 60:02}Z",
                ended_at=f"2025-01-01T00:{index // 60 % 60:02}:{index % 60:02}Z",
                duration_sec=21.5,
                exit_code=0 if status in HAS_RESULT else 1,
                failure=FAILURES.get(status),
            ),
        )
    return store


BROKEN = Shape(
    backends=("single", "in_graph", "tf_mirrored"),
    replicas=(1, 2, 4),
    statuses={
        ("tf_mirrored", WEAK, 4, 0): TrialStatus.TIMEOUT,
        ("tf_mirrored", WEAK, 4, 1): TrialStatus.OUT_OF_MEMORY,
        ("tf_mirrored", STRONG, 2, 1): TrialStatus.FAILED,
        ("in_graph", STRONG, 4, 2): TrialStatus.INSANE,
        ("tf_mirrored", STRONG, 4, 2): None,
    },
)
"""Every kind of failure, oversubscribed cases, and a case with one repetition."""

LEARNING = Budget(amount=300, unit=BudgetUnit.STEPS, num_evaluations=5)
"""A budget of quality runs."""
