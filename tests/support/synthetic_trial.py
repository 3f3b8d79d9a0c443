"""What one trial recorded that never ran: plausible figures, and every failure.

Figures follow a fixed table of throughputs, or the known parts of a step, with
lognormal noise that is seeded by the trial.
"""

import base64
import dataclasses
import math

import numpy as np

from results import (
    Block,
    Control,
    Environment,
    Failure,
    Phase,
    Placement,
    QualityMetric,
    QualityPoint,
    RankTimes,
    SanityCheck,
    ScalingMode,
    TrialResult,
    TrialStatus,
)

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
NUM_CORES = 2
DISCARDED = "other processes used 12 % of its cores (limit 3 %)"
SHARE_OF_SLOW_STEPS = 0.08
SANE = (SanityCheck(name="finite_loss", is_passed=True, detail="all finite"),)
ALL_CONTROLS = (Control.NOSYNC, Control.INDEPENDENT, Control.SYNTHETIC)

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
  File "harness/trial/worker.py", line 88, in main
    program = workload.build(replicator, **options)
  File "workloads/resnet50/workload.py", line 41, in build
    raise ValueError("<script>alert('unescaped')</script>")
ValueError: <script>alert('unescaped')</script>
"""


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
    TrialStatus.FAILED_CHECKS: Failure(
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


def result(spec, mode, trial_id, shape):
    """Makes the observations of a trial from the table of throughputs."""
    generator = np.random.default_rng(int(trial_id[:15], 16))
    # All cases of one repetition drift together, as on a shared machine.
    drift = np.random.default_rng(spec.seed).normal(0, shape.noise)
    drift += generator.normal(0, shape.noise / 2)
    rate = _throughput(spec, mode) * math.exp(drift)
    factor = shape.revisions.get(spec.revision, 1.0)
    if spec.control is Control.AA:
        factor = shape.aa_factor or 1.0
    step = factor * spec.global_batch_size / rate
    num_steps = shape.num_rounds or spec.num_measured_steps or 0
    times = step * np.exp(generator.normal(0, 0.03, num_steps))
    times += (
        step
        * generator.exponential(0.15, times.size)
        * (generator.random(times.size) < SHARE_OF_SLOW_STEPS)
    )
    start = START_SEC.get(spec.backend, 9.0) * spec.num_replicas**0.6
    start *= math.exp(generator.normal(0, 0.05))
    window = float(times.sum()) * 1.002
    quality = _quality(generator, 0.31)
    curve = ()
    if spec.budget is not None:
        curve = _curve(generator, spec, step, shape)
        (quality,) = curve[-1].quality
    return _trial_result(
        spec,
        trial_id,
        num_measured_steps=num_steps,
        window_sec=window,
        blocks=_blocks(spec, times, generator, shape) if shape.num_rounds else (),
        ranks=(
            RankTimes(
                rank=0,
                time_to_first_step_sec=start,
                warmup_step_time_sec=(start * 0.6, step * 1.4, step * 1.1),
                step_time_sec=tuple(float(value) for value in times),
                window_start_ns=0,
                window_end_ns=int(window * 1e9),
                losses=tuple(2.4 - 0.01 * k for k in range(num_steps)),
                peak_memory_bytes=int((1.1 + 0.55 * spec.num_replicas) * 2**30),
            ),
        ),
        quality=(quality,) if spec.is_evaluated else (),
        curve=curve,
        window_metrics=_counts(generator) if shape.has_actors else (),
        collectives="214 all_mean in 3 buckets over 2 owners",
    )


def _trial_result(spec, trial_id, **fields):
    return TrialResult(
        trial_id=trial_id,
        example_unit="images",
        num_parameters=23_528_522,
        global_batch_size=spec.global_batch_size,
        sanity=SANE,
        **fields,
    )


def _blocks(spec, times, generator, shape):
    """One step per block; noise of a round is shared by all cases."""
    shared = np.random.default_rng([spec.seed, 1]).normal(0, 0.1, times.size)
    ends = np.cumsum(times * np.exp(shared)) * 1e9
    starts = np.concatenate([[0.0], ends[:-1]])
    return tuple(
        Block(
            round_index=index,
            attempt=0,
            start_ns=int(start),
            end_ns=int(end),
            num_steps=1,
            foreign_cpu_fraction=0.0 if shape.revisions else None,
            discard_reason=DISCARDED
            if generator.random() < shape.discarded_share
            else "",
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """What a step at N replicas consists of, in seconds."""

    alone: float = 0.050  # One replica, its input included.
    input_alone: float = 0.004  # The input of one replica.
    contention: float = 0.0  # What programs beside it cost.
    exposed_communication: float = 0.010  # What a step waits for collectives.
    input: float = 0.004  # What a step at N replicas waits for its input.
    pipelines: float = 0.005  # What the pipelines of N replicas take without the step.
    # The update at N replicas, of which one replica has ``update_alone``.
    update: float = 0.003
    update_alone: float = 0.003  # The update of one replica.

    def of(self, spec):
        """Returns the duration of a step of a case or control."""
        if spec.num_replicas == 1:
            left_out = {
                Control.SYNTHETIC: self.input_alone,
                Control.NO_UPDATE: self.update_alone,
            }
            return self.alone - left_out.get(spec.control, 0.0)
        if spec.control is Control.INPUT_ONLY:
            return self.pipelines
        if spec.control is Control.INDEPENDENT:
            return self.alone + self.contention
        step = self.alone - self.input_alone + self.contention
        step += self.update - self.update_alone
        if spec.control is Control.NO_UPDATE:
            step -= self.update
        if spec.control is not Control.NOSYNC:
            step += self.exposed_communication
        if spec.control is not Control.SYNTHETIC:
            step += self.input
        return step


def known_result(spec, trial_id, shape):
    """Makes the observations of a trial whose steps consist of known parts."""
    generator = np.random.default_rng(int(trial_id[:15], 16))
    shared = np.random.default_rng(spec.seed)
    level = shared.normal(0, shape.noise)
    level += generator.normal(0, shape.noise_of_processes)
    weather = shared.normal(0, 0.05, shape.num_rounds)  # of each round, for all cases
    is_independent = spec.control is Control.INDEPENDENT
    backend = shape.backends[0] if is_independent else spec.backend
    step_sec = shape.lost.get(backend, Lost()).of(spec)
    num_ranks = spec.num_replicas if is_independent else shape.num_ranks
    num_ranks = 1 if spec.num_replicas == 1 else num_ranks
    late = shape.imbalance if spec.control is Control.NOSYNC else 0.0
    steps_per_block = (shape.steps_per_block * shape.repeats)[spec.repetition_index]
    blocks = []
    steps = [[] for _ in range(num_ranks)]
    now_ns = 0
    for index in range(shape.num_rounds):
        attempts = [False, True] if generator.random() < 0.2 else [True]
        if shape.is_without_common_round:
            attempts = [(index % 2 == 0) == (spec.control is Control.NONE)]
        for attempt, is_valid in enumerate(attempts):
            factor = math.exp(level + weather[index]) * (1 if is_valid else 1.5)
            seconds = 0.0
            for rank in range(num_ranks):
                step = (step_sec - late * (rank < num_ranks - 1)) * factor
                of_block = [step * shape.first_step] + [step] * (steps_per_block - 1)
                steps[rank] += of_block
                seconds = max(seconds, sum(of_block))
            end_ns = now_ns + round(seconds * 1e9)
            blocks.append(
                Block(
                    round_index=index,
                    attempt=attempt,
                    start_ns=now_ns,
                    end_ns=end_ns,
                    num_steps=steps_per_block,
                    discard_reason="" if is_valid else "other processes used 9 %",
                )
            )
            now_ns = end_ns + 1_000_000
    return _trial_result(
        spec,
        trial_id,
        flops_per_example=1_000_000,
        num_measured_steps=steps_per_block * len(blocks),
        window_sec=sum(block.time_sec for block in blocks),
        blocks=tuple(blocks),
        ranks=tuple(
            RankTimes(
                rank=rank,
                time_to_first_step_sec=8.0,
                warmup_step_time_sec=(4.0, 0.06, 0.06),
                step_time_sec=tuple(steps[rank]),
                window_start_ns=0,
                window_end_ns=now_ns,
                losses=(2.4, 2.3),
                peak_memory_bytes=2**30,
                peak_flops_per_sec=shape.peak_flops_per_sec,
            )
            for rank in range(num_ranks)
        ),
    )


def environment(spec, fingerprint):
    """Makes the record of a machine that nobody has."""
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


def _wilson(successes, n):
    z = 1.959964
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return centre - half, centre + half


def _throughput(spec, mode):
    key = (spec.backend, mode, spec.num_replicas)
    weak = THROUGHPUT.get((spec.backend, WEAK, spec.num_replicas))
    return THROUGHPUT.get(key) or weak or 40.0 * spec.num_replicas**0.5


def _quality(generator, share):
    correct = int(generator.binomial(359, share))
    low, high = _wilson(correct, 359)
    return QualityMetric(
        name="top_1",
        value=correct / 359,
        unit="",
        num_examples=359,
        low=low,
        high=high,
        method="Wilson score interval",
    )


def _counts(generator):
    rate = float(generator.normal(900, 30))
    return tuple(
        QualityMetric(
            name=name,
            value=value,
            unit=unit,
            num_examples=16,
            low=value,
            high=value,
            method="counted, not estimated",
        )
        for name, value, unit in (
            ("environment_steps_per_sec", rate, "environment steps/s"),
            ("actor_idle_share", 0.25, "ratio"),
        )
    )


def _curve(generator, spec, step_sec, shape):
    """Quality that comes closer to 97 % with every example."""
    budget = spec.budget
    assert budget is not None
    points = []
    for number in range(1, budget.num_evaluations + 1):
        num_steps = math.ceil(budget.amount * number / budget.num_evaluations)
        num_examples = num_steps * spec.global_batch_size
        share = 0.97 - 0.87 * math.exp(-num_examples / 700)
        share *= shape.learned.get(spec.revision, 1.0)
        points.append(
            QualityPoint(
                num_steps=num_steps,
                num_examples=num_examples,
                train_time_sec=(num_steps - 1) * step_sec,
                num_environment_steps=10 * num_steps if shape.has_actors else None,
                quality=(_quality(generator, share),),
                samples=f"samples_{num_steps:08}.png",
            )
        )
    return tuple(points)
