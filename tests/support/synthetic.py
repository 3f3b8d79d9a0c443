"""Makes a store of a study that nobody measured, with plausible figures.

Benchmarks and tests use it: it is fast, seeded, and can be as large and as broken as
wanted. Step times come from a table of throughputs or, in a ``interleaving_shape``,
from the parts of a step, so that its lost time is known.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import synthetic_trial
from study_files import edit_record, with_results
from synthetic_trial import ALL_CONTROLS, Lost

from results import (
    Budget,
    BudgetUnit,
    Contrast,
    Control,
    Measuring,
    MetricFacts,
    Order,
    Plan,
    ScalingMode,
    StatusRecord,
    Store,
    TrialSpec,
    TrialStatus,
    case_id,
    figures,
    load_study,
    planned_trial,
    trial_id,
)
from workloads import WORKLOADS

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
BASE_BATCH = 8
FEWEST_OF_A_CONTRAST = 2
HAS_RESULT = {TrialStatus.OK, TrialStatus.FAILED_CHECKS}
ALSO_ALONE = (Control.SYNTHETIC, Control.NO_UPDATE)
"""Controls that one replica has as well."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """How large and how broken the study is."""

    backends: tuple[str, ...] = ("in_graph", "tf_mirrored")  # In planned order.
    modes: tuple[ScalingMode, ...] = (WEAK, STRONG)  # In planned order.
    replicas: tuple[int, ...] = (1, 2)  # Ascending; the first is the baseline.
    repeats: int = 3  # Repetitions per case.
    num_measured_steps: int = 16  # Steps in the measured window.
    # Trials that are not ok, by (backend, mode, replicas, repetition); the value None
    # leaves the trial out of the store.
    statuses: dict[tuple[str, ScalingMode, int, int], TrialStatus | None] = (
        dataclasses.field(default_factory=dict)
    )
    # Machines, dealt to trials in turn.
    fingerprints: tuple[str, ...] = ("5f0c3a1be2d94c7788aa",)
    is_evaluated: bool = True  # Whether top-1 is recorded.
    noise: float = 0.012  # Standard deviation of log throughput between repetitions.
    # Of the quality runs of the strong cases; None for none.
    budget: Budget | None = None
    num_learning_runs: int = 1  # Repetitions of those.
    # Revisions that have quality runs beside this tree, with the factor of their
    # accuracy.
    learned: dict[str, float] = dataclasses.field(default_factory=dict)
    has_actors: bool = False  # Whether programs count environment steps.
    num_rounds: int = 0  # Of each repetition; 0 for trials in sequence.
    # In an interleaved study, revisions beside this tree, with the factor by which
    # their steps take longer.
    revisions: dict[str, float] = dataclasses.field(default_factory=dict)
    # In an interleaved study, by which steps of the A/A control take longer; None for
    # no aa_control.
    aa_factor: float | None = None
    discarded_share: float = (
        0.0  # In an interleaved study, of blocks that are discarded.
    )
    # Examples per step of one replica; of all with strong scaling.
    baseline_batch_size: int = BASE_BATCH
    name: str = "resnet50-laptop-synthetic"  # Of the study.
    workload: str = "resnet50"  # Of all trials.
    workload_version: str = "1"  # Of all trials.
    # Parts of a step, by backend; the default for others. None: step times are not
    # made of them, and what follows has no effect.
    lost: dict[str, Lost] | None = None
    controls: tuple[Control, ...] = ()  # Of the first backend at the most replicas.
    # Processes of a case with several replicas; the last one is slower by ``imbalance``
    # in nosync.
    num_ranks: int = 1
    imbalance: float = 0.0  # Seconds per step.
    # Standard deviation of log step time between the processes of a repetition.
    noise_of_processes: float = 0.0005
    # Trials that failed, by control, replicas and repetition.
    not_ok: frozenset[tuple[Control, int, int]] = frozenset()
    # Of every process; None if it was not measured.
    peak_flops_per_sec: float | None = None
    # Whether cases and controls are valid in turn.
    is_without_common_round: bool = False
    # By how much the first step of each block is longer, as a ratio.
    first_step: float = 1.0
    steps_per_block: tuple[int, ...] = (3,)  # By repetition, over and over.


def interleaving_shape(**fields):
    """An interleaved study whose lost time is known; some blocks are discarded."""
    defaults = {
        "backends": ("in_graph",),
        "modes": (WEAK,),
        "repeats": 4,
        "num_rounds": 6,
        "aa_factor": 1.0,
        "noise": 0.03,
        "is_evaluated": False,
        "lost": {},
        "controls": ALL_CONTROLS,
        "name": "relay-of-nobody",
        "workload_version": "2",
    }
    return Shape(**(defaults | fields))


REVISION = "1234567890ab"


def gate_shape(*, slower=1.0, **fields):
    """A gate: every case of this tree, and of a revision that it is slower than.

    Its noise is far below the 5 % that matter.
    """
    defaults = {
        "backends": ("in_graph",),
        "modes": (WEAK,),
        "num_rounds": 10,
        "noise": 0.008,
        "aa_factor": 1.0,
        "revisions": {REVISION: 1 / slower},
        "is_evaluated": False,
    }
    return Shape(**(defaults | fields))


def make_store(root, shape=None):
    """Writes a whole study under ``root`` and opens it."""
    shape = shape or Shape()
    planned = _planned(shape)
    store = Store.create(root)
    store.write_plan(
        Plan(
            study=shape.name,
            created_at="2025-01-01T00:00:00Z",
            command=("python", "-m", "harness", "sweep", "--workload", "resnet50"),
            baseline_num_replicas=shape.replicas[0],
            repeats=shape.repeats or shape.num_learning_runs,
            seed=7,
            timeout_sec=300,
            measuring=_measuring(planned, shape),
            metrics=tuple(
                {
                    facts.name: MetricFacts.model_validate(facts, from_attributes=True)
                    for info in WORKLOADS.values()
                    for facts in info.metrics
                }.values()
            ),
            trials=tuple(planned_trial(*both) for both in planned.values()),
        )
    )
    for index, (name, (spec, modes)) in enumerate(planned.items()):
        key = (spec.backend, modes[0], spec.num_replicas, spec.repetition_index)
        status = shape.statuses.get(key, TrialStatus.OK)
        if (spec.control, *key[2:]) in shape.not_ok:
            status = TrialStatus.FAILED
        if status is not None:
            _write_trial(store, name, spec, modes[0], status, index, shape)
    return store


def make_dated(root, shape, *, day=1, env=None, slower=None):
    """The same of a day; fields of environments are others, and backends slower."""
    store, date = make_store(root, shape), f"2026-01-{day:02}"
    edit_record(root / "plan.json", created_at=f"{date}T00:00:00+00:00")
    for trial in store.trials():
        folder = store.trial_dir(trial.trial_id)
        edit_record(folder / "status.json", started_at=f"{date}T12:00:00+00:00")
        edit_record(folder / "env.json", **(env or {}))
        if factor := (slower or {}).get(trial.spec.backend):
            window_sec = trial.result.window_sec * factor
            edit_record(folder / "result.json", window_sec=window_sec)
    return store


def _planned(shape):
    planned = {}
    for spec, mode in itertools.chain(_timed(shape), _learning(shape)):
        _, modes = planned.setdefault(trial_id(spec), (spec, []))
        modes.append(mode)
    # In the order of the sweep, whichever repetition came first.
    return {
        name: (spec, [mode for mode in shape.modes if mode in modes])
        for name, (spec, modes) in planned.items()
    }


def _measuring(planned, shape):
    """Names the largest case of two backends, or of two revisions, as primary."""
    if shape.lost is not None:
        return Measuring(
            order=Order.INTERLEAVED, minutes=9.0, max_rounds=shape.num_rounds
        )
    ids = {
        (spec.backend, spec.revision): case_id(spec)
        for spec, modes in planned.values()
        if spec.control is Control.NONE
        and spec.num_replicas == shape.replicas[-1]
        and shape.modes[0] in modes
        and spec.budget is None
    }
    if not shape.num_rounds or len(ids) < FEWEST_OF_A_CONTRAST:
        return Measuring()
    first, second = list(ids)[:2]
    return Measuring(
        order=Order.INTERLEAVED,
        minutes=9,
        primary=Contrast(
            first_case_id=ids[first],
            second_case_id=ids[second],
            text=f"{' '.join(first)} / {' '.join(second)}",
        ),
    )


def _timed(shape):
    """Trials that are timed, every other repetition in reverse order."""
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
            yield spec, mode
            for revision in shape.revisions:
                yield spec.model_copy(update={"revision": revision}), mode
            is_last = (backend, num_replicas) == (shape.backends[0], shape.replicas[-1])
            if is_last and mode is shape.modes[0] and shape.aa_factor is not None:
                yield spec.model_copy(update={"control": Control.AA}), mode
        yield from _controlled(repetition, shape)


def _controlled(repetition, shape):
    """Yields the controls of an interleaved study, some of which one replica has as
    well.
    """
    for control in shape.controls:
        backend = "single" if control is Control.INDEPENDENT else shape.backends[0]
        sizes = (shape.replicas[-1],) + (1,) * (control in ALSO_ALONE)
        for num_replicas in sizes:
            spec = _spec(backend, WEAK, num_replicas, repetition, shape)
            yield spec.model_copy(update={"control": control}), WEAK


def _learning(shape):
    """Quality runs, if there is a budget for them."""
    if shape.budget is None:
        return
    mode = STRONG if STRONG in shape.modes else WEAK
    for repetition, backend, num_replicas in itertools.product(
        range(shape.num_learning_runs), shape.backends, shape.replicas
    ):
        if backend != "single" or num_replicas == 1:
            spec = _spec(backend, mode, num_replicas, repetition, shape, shape.budget)
            yield spec, mode
            for revision in shape.learned:
                yield spec.model_copy(update={"revision": revision}), mode


def _spec(backend, mode, num_replicas, repetition, shape, budget=None):
    base = shape.baseline_batch_size
    per_replica = base if mode is WEAK else max(1, base // num_replicas)
    return TrialSpec(
        workload=shape.workload,
        workload_version=shape.workload_version,
        code_digest="c0de" * 5,
        preset="laptop",
        data="digits",
        backend=backend,
        num_replicas=num_replicas,
        per_replica_batch_size=per_replica,
        global_batch_size=per_replica * num_replicas,
        cores_per_replica=1,
        num_warmup_steps=3,
        num_measured_steps=None if shape.num_rounds else shape.num_measured_steps,
        order=Order.INTERLEAVED if shape.num_rounds else Order.SEQUENTIAL,
        is_evaluated=shape.is_evaluated or budget is not None,
        budget=budget,
        repetition_index=repetition,
        seed=1000 + repetition,
    )


def _write_trial(store, name, spec, mode, status, index, shape):
    fingerprint = shape.fingerprints[index % len(shape.fingerprints)]
    store.write_spec(name, spec)
    store.write_env(name, synthetic_trial.environment(spec, fingerprint))
    if status in HAS_RESULT:
        if shape.lost is None:
            result = synthetic_trial.result(spec, mode, name, shape)
        else:
            result = synthetic_trial.known_result(spec, name, shape)
        store.write_result(name, result)
        for point in result.curve:
            picture = store.trial_dir(name) / point.samples
            picture.write_bytes(synthetic_trial.PICTURE)
    time = f"2025-01-01T00:{index // 60 % 60:02}:{index % 60:02}Z"
    store.write_status(
        name,
        StatusRecord(
            trial_id=name,
            status=status,
            started_at=time,
            ended_at=time,
            duration_sec=21.5,
            exit_code=0 if status in HAS_RESULT else 1,
            failure=synthetic_trial.FAILURES.get(status),
        ),
    )


def every(
    status,
    *,
    backends=("in_graph", "tf_mirrored"),
    modes=(WEAK, STRONG),
    replicas=(1, 2),
    repetitions=range(3),
):
    """One status of many trials, for ``Shape.statuses``."""
    keys = itertools.product(backends, modes, replicas, repetitions)
    return dict.fromkeys(keys, status)


BROKEN = Shape(
    backends=("single", "in_graph", "tf_mirrored"),
    replicas=(1, 2, 4),
    statuses={
        ("tf_mirrored", WEAK, 4, 0): TrialStatus.TIMEOUT,
        ("tf_mirrored", WEAK, 4, 1): TrialStatus.OUT_OF_MEMORY,
        ("tf_mirrored", STRONG, 2, 1): TrialStatus.FAILED,
        ("in_graph", STRONG, 4, 2): TrialStatus.FAILED_CHECKS,
        ("tf_mirrored", STRONG, 4, 2): None,
    },
)
"""Every kind of failure, oversubscribed cases, and a case with one repetition."""

LEARNING = Budget(amount=300, unit=BudgetUnit.STEPS, num_evaluations=5)
"""A budget of quality runs."""

# Studies of two replicas with one known loss, from controls or from blocks. The truth
# is a model of what each of their steps does and for how long, which shares nothing
# with the code that splits steps. Noise is typical of shared machines: 3 % between
# repetitions for all cases, 1 % between processes.
REPETITIONS = 5
LOST = 0.012


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What a step does, in seconds: alone, and what two replicas take longer."""

    work: float = 0.050
    own_input: float = 0.004
    own_update: float = 0.003
    contention: float = 0.0
    exposed_communication: float = 0.0
    input: float = 0.0
    update: float = 0.0
    imbalance: float = 0.0

    def process(self, rank, *, no_input=False, no_update=False):
        """The step of one of two processes until it would communicate."""
        step = self.work + self.contention + self.imbalance * rank
        step += 0.0 if no_input else self.own_input + self.input
        return step + (0.0 if no_update else self.own_update + self.update)

    def times(self):
        """What each case and control takes."""
        alone = self.work + self.own_input + self.own_update
        two = [self.process(rank) for rank in (0, 1)]
        shared = self.input + self.update  # by the program of both replicas only
        comm = self.exposed_communication
        return {
            "case": max(two) + comm,
            "baseline": alone,
            "nosync": max(two),
            "independent": sum(two) / 2 - shared,
            "synthetic": self.process(1, no_input=True) + comm,
            "baseline_synthetic": alone - self.own_input,
            "without_update": self.process(1, no_update=True) + comm,
            "baseline_without_update": alone - self.own_update,
        }


def split(times, generator, *, late_sec=0.0, noise=0.01):
    """Measures cases and controls of known times, and splits the step of the case."""
    machine = np.exp(generator.normal(0, 0.03, REPETITIONS))

    def measured(seconds):
        process = np.exp(generator.normal(0, noise, REPETITIONS))
        return dict(enumerate((seconds * machine * process).tolist()))

    late = late_sec * machine + generator.normal(0, 0.0005, REPETITIONS)
    return figures.decompose(
        **{name: measured(seconds) for name, seconds in times.items()},
        imbalance=dict(enumerate(np.maximum(late, 0).tolist())),
    )


def of_controls(truth, seed):
    """The parts of the step of two replicas, from controls."""
    generator = np.random.default_rng(seed)
    return split(truth.times(), generator, late_sec=truth.imbalance)


OF_CONTROLS = [
    ("", Step()),
    # One replica waits for its input for a quarter of its step: two lose nothing.
    ("", Step(own_input=0.020, own_update=0.010)),
    ("contention", Step(contention=LOST)),
    ("exposed_communication", Step(exposed_communication=LOST)),
    ("input", Step(input=LOST)),
    ("update", Step(update=LOST)),
]

STEP_SEC, INJECTED_SEC = 0.050, 0.010
# The cases and controls that each part makes longer. Input and update are those of the
# program of all replicas: what one replica takes for them as well is no loss.
AFFECTED = {
    "none": (),
    "exposed_communication": ("case", "synthetic", "without_update"),
    "input": ("case", "nosync", "without_update"),
    "contention": ("case", "nosync", "independent", "synthetic", "without_update"),
    "imbalance": ("case", "nosync", "synthetic", "without_update"),
    "update": ("case", "nosync", "synthetic"),
    "unexplained": ("case", "nosync", "synthetic", "without_update"),
}


def held_by_controls(generator, injected):
    """Yields each part of one study, and whether its interval holds the truth."""
    times = {
        name: STEP_SEC + INJECTED_SEC * (name in AFFECTED[injected])
        for name in Step().times()
    }
    late_sec = INJECTED_SEC * (injected == "imbalance")
    for part in split(times, generator, late_sec=late_sec, noise=0.02).parts:
        truth = STEP_SEC if part.name == "alone" else 0.0
        yield (
            part.name,
            not part.time.excludes(truth + INJECTED_SEC * (part.name == injected)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cores:
    """Seconds that the cores of two replicas work in a step beyond the step of one."""

    computing: float = 0.0  # For the trial.
    run_queue_delay: float = 0.0  # For others, while a thread of the trial waits.
    idle: float = 0.0  # Nothing.
    # How long threads wait for threads of the same trial, at any size.
    queue: float = 0.0


ALONE = 0.057
OF_BLOCKS = [
    ("", Cores(queue=0.050)),
    ("computing", Cores(computing=LOST, queue=0.050)),
    ("idle", Cores(idle=LOST, queue=0.050)),
    ("run_queue_delay", Cores(run_queue_delay=LOST)),
]


def make_study(folder):
    shape = interleaving_shape(controls=(), repeats=REPETITIONS)
    return load_study(make_store(folder, shape))


def of_blocks(study, truth, seed):
    """The parts of the step of two replicas, from blocks of known parts."""
    generator = np.random.default_rng(seed)
    machine = np.exp(generator.normal(0, 0.03, REPETITIONS))

    def change(entry):
        size = entry.spec.num_replicas
        is_alone = size == 1
        process = float(np.exp(generator.normal(0, 0.01)))
        factor = float(machine[entry.spec.repetition_index]) * process
        idle = 0.001 + (0.0 if is_alone else truth.idle)
        others = 0.0005 + (0.0 if is_alone else truth.run_queue_delay)
        cpu = ALONE - 0.0015 + (0.0 if is_alone else truth.computing)
        blocks, steps, now_ns = [], [], 0
        for block in entry.result.blocks:
            here = factor * float(np.exp(generator.normal(0, 0.005)))
            step = here * (cpu + idle + others)
            number = block.num_steps
            update = {
                "start_ns": now_ns,
                "end_ns": now_ns + round(1e9 * step * number),
                "user_sec": here * cpu * size * number,
                "foreign_cpu_fraction": others * here / step,
                "stolen_cpu_fraction": 0.0,
                "run_delay_sec": (others + truth.queue) * here * size * number,
            }
            blocks.append(block.model_copy(update=update))
            now_ns = blocks[-1].end_ns + 1_000_000
            steps += [step] * number
        (rank,) = entry.result.ranks
        ranks = (rank.model_copy(update={"step_time_sec": tuple(steps)}),)
        return {"blocks": tuple(blocks), "ranks": ranks}

    made = with_results(study, change)
    (found,) = figures.losses(made)
    return found.lost


def held_by_blocks(found, truth):
    """Yields each part, and whether its interval holds the truth."""
    truths = {"ideal": ALONE, "unexplained": 0.0, **dataclasses.asdict(truth)}
    for part in found.parts:
        yield part.name, not part.time.excludes(truths[part.name])
