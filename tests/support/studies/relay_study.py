"""Makes a store of a relay that nobody measured, whose lost time is known.

Step times follow from the parts of a step (``Lost``), with noise that all cases of a
generation share and noise of each process, seeded. Some turns are void.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import synthetic_trial

from results.records import identity
from results.records.models import (
    Control,
    Measuring,
    Order,
    Plan,
    PlannedTrial,
    RankTimes,
    SanityCheck,
    ScalingMode,
    StatusRecord,
    TrialResult,
    TrialSpec,
    TrialStatus,
    Turn,
)
from results.store.study_store import Store

BATCH = 8
STEPS_PER_TURN = 3
ALL = (Control.NOSYNC, Control.SOLO, Control.SYNTHETIC)
_ALSO_ALONE = (Control.SYNTHETIC, Control.NO_UPDATE)


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
        if spec.control is Control.SOLO:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelayShape:
    """How large the relay is, and what it measured."""

    backends: tuple[str, ...] = ("in_graph",)  # In planned order.
    replicas: tuple[int, ...] = (1, 2)  # Ascending; the first is the baseline.
    generations: int = 4  # Repetitions of each case.
    rounds: int = 6  # Of each generation.
    controls: tuple[Control, ...] = ALL  # Of the first backend at the most replicas.
    # Parts of a step, by backend; the default for others.
    lost: dict[str, Lost] = dataclasses.field(default_factory=dict)
    # Processes of a case with several replicas; the last one is slower by ``imbalance``
    # in nosync.
    num_ranks: int = 1
    imbalance: float = 0.0  # Seconds per step.
    # Standard deviation of log step time between generations, which all cases share.
    noise: float = 0.03
    noise_of_processes: float = 0.0005  # The same between processes.
    # Trials that failed, by control, replicas and generation.
    not_ok: frozenset[tuple[Control, int, int]] = frozenset()
    # Of every process; None if it was not measured.
    peak_flops_per_sec: float | None = None
    # Whether cases and controls are valid in turn.
    is_without_common_round: bool = False
    # By how much the first step of each turn is longer, as a ratio.
    first_step: float = 1.0
    steps_per_turn: tuple[int, ...] = (STEPS_PER_TURN,)  # By generation, over and over.


def make_store(root, shape=None):
    """Writes a whole study under ``root`` and opens it."""
    shape = shape or RelayShape()
    specs = [spec for g in range(shape.generations) for spec in _generation(shape, g)]
    trials = []
    for spec in specs:
        trial_id, case_id = identity.ids(spec)
        weak = (ScalingMode.WEAK,)
        trials.append(
            PlannedTrial(trial_id=trial_id, case_id=case_id, modes=weak, spec=spec)
        )
    store = Store.create(root)
    store.write_plan(
        Plan(
            study="relay-of-nobody",
            created_at="2025-01-01T00:00:00Z",
            command=("python", "-m", "harness", "sweep", "--workload", "resnet50"),
            baseline_num_replicas=shape.replicas[0],
            repeats=shape.generations,
            seed=7,
            timeout_sec=300,
            measuring=Measuring(
                order=Order.RELAY, minutes=9.0, max_rounds=shape.rounds
            ),
            trials=tuple(trials),
        )
    )
    for trial in trials:
        _write(store, trial, shape)
    return store


def _generation(shape, index):
    most = shape.replicas[-1]
    cases = [(b, n, Control.NONE) for n in shape.replicas for b in shape.backends]
    first = shape.backends[0]
    cases.append((first, most, Control.TWIN))
    for control in shape.controls:
        cases.append(("single" if control is Control.SOLO else first, most, control))
        if control in _ALSO_ALONE:
            cases.append((first, 1, control))
    common = {
        "workload": "resnet50",
        "workload_version": "2",
        "preset": "laptop",
        "data": "digits",
        "per_replica_batch_size": BATCH,
        "cores_per_replica": 1,
        "num_warmup_steps": 3,
        "num_measured_steps": None,
        "order": Order.RELAY,
        "is_evaluated": False,
        "repetition_index": index,
        "seed": 1000 + index,
    }
    return [
        TrialSpec(
            **common,
            code_digest=backend.encode().hex()[:16],
            backend=backend,
            num_replicas=num_replicas,
            global_batch_size=BATCH * num_replicas,
            control=control,
        )
        for backend, num_replicas, control in cases
    ]


def _write(store, trial, shape):
    spec, trial_id = trial.spec, trial.trial_id
    key = spec.control, spec.num_replicas, spec.repetition_index
    is_ok = key not in shape.not_ok
    store.write_spec(trial_id, spec)
    store.write_env(trial_id, synthetic_trial.environment(spec, "5f0c3a1be2d94c7788aa"))
    if is_ok:
        store.write_result(trial_id, _result(trial, shape))
    time = "2025-01-01T00:00:00Z"
    status = TrialStatus.OK if is_ok else TrialStatus.FAILED
    store.write_status(
        trial_id,
        StatusRecord(
            trial_id=trial_id,
            status=status,
            started_at=time,
            ended_at=time,
            duration_sec=21.5,
            exit_code=0 if is_ok else 1,
            failure=synthetic_trial.FAILURES.get(status),
        ),
    )


def _result(trial, shape):
    spec = trial.spec
    generator = np.random.default_rng(int(trial.trial_id[:15], 16))
    shared = np.random.default_rng(spec.seed)
    level = shared.normal(0, shape.noise)
    level += generator.normal(0, shape.noise_of_processes)
    weather = shared.normal(0, 0.05, shape.rounds)  # of each round, for all cases
    lost = shape.lost.get(spec.backend, Lost())
    if spec.control is Control.SOLO:
        lost = shape.lost.get(shape.backends[0], Lost())
    num_ranks = spec.num_replicas if spec.control is Control.SOLO else shape.num_ranks
    num_ranks = 1 if spec.num_replicas == 1 else num_ranks
    late = shape.imbalance if spec.control is Control.NOSYNC else 0.0
    steps_per_turn = (shape.steps_per_turn * shape.generations)[spec.repetition_index]
    turns = []
    steps = [[] for _ in range(num_ranks)]
    now_ns = 0
    for index in range(shape.rounds):
        is_void = bool(generator.random() < 0.2)
        attempts = [False, True] if is_void else [True]
        if shape.is_without_common_round:
            attempts = [(index % 2 == 0) == (spec.control is Control.NONE)]
        for attempt, is_valid in enumerate(attempts):
            factor = math.exp(level + weather[index]) * (1 if is_valid else 1.5)
            seconds = 0.0
            for rank in range(num_ranks):
                step = (lost.of(spec) - late * (rank < num_ranks - 1)) * factor
                of_turn = [step * shape.first_step] + [step] * (steps_per_turn - 1)
                steps[rank] += of_turn
                seconds = max(seconds, sum(of_turn))
            end_ns = now_ns + round(seconds * 1e9)
            turns.append(
                Turn(
                    round_index=index,
                    attempt=attempt,
                    start_ns=now_ns,
                    end_ns=end_ns,
                    num_steps=steps_per_turn,
                    void_reason="" if is_valid else "other processes used 9 %",
                )
            )
            now_ns = end_ns + 1_000_000
    num_steps = steps_per_turn * len(turns)
    return TrialResult(
        trial_id=trial.trial_id,
        example_unit="images",
        num_parameters=23_528_522,
        flops_per_example=1_000_000,
        global_batch_size=spec.global_batch_size,
        num_measured_steps=num_steps,
        window_sec=sum(turn.time_sec for turn in turns),
        turns=tuple(turns),
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
        sanity=(SanityCheck(name="finite_loss", is_passed=True, detail="all finite"),),
    )
