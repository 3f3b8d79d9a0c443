"""A plan has distinct, interleaved, paired trials, or says why there is none."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness import catalog
from harness.errors import PlanError
from harness.planning import checked, plan
from harness.planning.request import SweepRequest
from results.records.models import Order, ScalingMode

BOTH = (ScalingMode.WEAK, ScalingMode.STRONG)
TWO_CORES = checked.Machine(num_available_cores=2)
DEFAULTS = {"preset": "smoke", "order": Order.SEQUENTIAL}


def check(num_available_cores=8, num_gpus=None, **fields):
    request = SweepRequest(workload="resnet50", **(DEFAULTS | fields))
    machine = checked.Machine(
        num_available_cores=num_available_cores, num_gpus=num_gpus
    )
    return checked.check(request, machine)


def plan_of(*machine, **fields):
    return plan.arrange(check(*machine, **fields))


def digest_of(**fields):
    return plan.digest_of(check(**fields))


requests = st.fixed_dictionaries(
    {
        "backends": st.lists(
            st.sampled_from(["in_graph", "tf_mirrored"]), min_size=1, unique=True
        ).map(tuple),
        "replicas": st.sets(st.sampled_from([1, 2, 4, 8, 16]), min_size=1).map(
            lambda counts: tuple(sorted(counts))
        ),
        "modes": st.sampled_from([BOTH, BOTH[:1], BOTH[1:]]),
        "repeats": st.integers(1, 5),
        "per_replica_batch_size": st.sampled_from([16, 32]),
        "seed": st.integers(0, 2**40),
    }
)


@given(requests)
def test_trials_are_distinct_and_repetitions_are_complete(fields):
    planned = plan_of(**fields)
    ids = [trial.trial_id for trial in planned.trials]
    cases = {trial.case_id for trial in planned.trials}

    assert len(ids) == len(set(ids)) == len(cases) * fields["repeats"]
    for repetition in range(fields["repeats"]):
        in_block = [
            trial.case_id
            for trial in planned.trials
            if trial.spec.repetition_index == repetition
        ]
        assert sorted(cases) == sorted(in_block)


@given(requests)
def test_repetitions_are_blocks_in_alternating_direction(fields):
    """ABBA: a linear drift affects every case equally over a pair of blocks."""
    planned = plan_of(**fields)
    blocks = [
        [trial.case_id for trial in block]
        for _, block in itertools.groupby(
            planned.trials, key=lambda trial: trial.spec.repetition_index
        )
    ]

    assert fields["repeats"] == len(blocks)
    for even, odd in itertools.pairwise(blocks):
        assert even == odd[::-1]


@given(requests)
def test_seeds_pair_the_cases_of_a_repetition_and_no_others(fields):
    planned = plan_of(**fields)
    pairs = {(trial.spec.repetition_index, trial.spec.seed) for trial in planned.trials}

    assert fields["repeats"] == len(pairs)
    assert fields["repeats"] == len({seed for _, seed in pairs})


@given(requests)
def test_each_mode_keeps_what_it_must_keep(fields):
    """Weak keeps the per-replica batch, strong the global one, exactly."""
    planned = plan_of(**fields)
    size = fields["per_replica_batch_size"]
    for trial in planned.trials:
        spec = trial.spec
        product = spec.per_replica_batch_size * spec.num_replicas

        assert product == spec.global_batch_size
        if ScalingMode.WEAK in trial.modes:
            assert size == spec.per_replica_batch_size
        if ScalingMode.STRONG in trial.modes:
            assert size * fields["replicas"][0] == spec.global_batch_size


@given(requests)
def test_cores_per_replica_are_constant(fields):
    """A ratio of two cases compares equal replicas."""
    planned = plan_of(**fields)

    assert len({trial.spec.cores_per_replica for trial in planned.trials}) == 1


@given(requests)
def test_planning_is_a_function_of_the_request(fields):
    assert plan_of(**fields) == plan_of(**fields)
    assert digest_of(**fields) == digest_of(**fields)


def test_another_global_batch_has_a_baseline_of_its_own():
    """With --global-batch-size, the modes need not meet."""
    planned = plan_of(replicas=(1,), global_batch_size=12, repeats=1)
    sizes = {(t.modes, t.spec.global_batch_size) for t in planned.trials}

    assert {(BOTH[:1], 4), (BOTH[1:], 12)} == sizes


def test_a_batch_smaller_than_the_replicas_says_what_works():
    message = r"global batch 4 .* 8 replicas .* --global-batch-size 8, or 4 replicas"
    with pytest.raises(PlanError, match=message):
        plan_of(replicas=(1, 8), modes=BOTH)


def test_a_global_batch_without_strong_scaling_is_refused():
    """It would be ignored silently."""
    with pytest.raises(PlanError, match=r"--global-batch-size 8 has no effect"):
        plan_of(modes=BOTH[:1], global_batch_size=8)


def test_single_is_planned_at_one_replica_and_said_so():
    """A backend that cannot replicate is measured where it can be."""
    planned = plan_of(backends=("single", "in_graph"), replicas=(1, 2), repeats=1)
    counts = {(trial.spec.backend, trial.spec.num_replicas) for trial in planned.trials}

    assert {("single", 1), ("in_graph", 1), ("in_graph", 2)} == counts
    assert "backend single: planned at 1 replica(s) only" in planned.notes[0]


def test_single_without_one_replica_is_refused():
    with pytest.raises(PlanError, match=r"'single' runs at most 1 .* smallest .* is 2"):
        plan_of(backends=("single",), replicas=(2,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": "resnet5"}, r"unknown workload 'resnet5'; known .* did you mean"),
        ({"backends": ()}, r"no backend was requested"),
        ({"modes": ()}, r"no scaling mode was requested; allowed are weak, strong"),
    ],
)
def test_unknown_names_are_refused_with_what_is_known(fields, message):
    request = SweepRequest(**({"workload": "resnet50"} | fields))
    with pytest.raises(PlanError, match=message):
        plan.plan_sweep(request, TWO_CORES)


@pytest.mark.parametrize(
    ("num_cores", "modes", "expected"),
    [
        (1, BOTH, {1}),
        (2, BOTH, {1, 2}),
        (64, BOTH, {1, 2, 4}),
        (64, BOTH[:1], {1, 2, 4, 8}),
    ],
)
def test_default_replicas_fit_the_machine_and_the_batch(num_cores, modes, expected):
    """Powers of two up to the cores, 8, and what divides 4 examples."""
    planned = plan_of(num_available_cores=num_cores, modes=modes)

    assert expected == {trial.spec.num_replicas for trial in planned.trials}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 1),
        ({"steps_per_sync": 4}, 4),
        ({"device": "gpu", "num_gpus": 2, "replicas": (1,), "preset": "gpu"}, 10),
    ],
)
def test_steps_are_queued_on_gpus(fields, expected):
    """On CPUs a step has ended when its call returns, so nothing is gained."""
    planned = plan_of(**fields)

    assert {expected} == {trial.spec.steps_per_sync for trial in planned.trials}


def test_steps_whose_results_the_host_uses_are_not_queued():
    request = SweepRequest(
        workload="d4pg", preset="gpu", device="gpu", replicas=(1,), budget="none"
    )
    machine = checked.Machine(num_available_cores=8, num_gpus=1)
    planned = plan.plan_sweep(request, machine)

    assert {1} == {trial.spec.steps_per_sync for trial in planned.trials}
    message = r"^--steps-per-sync 2 with workload d4pg: actors .*; use 1$"
    with pytest.raises(PlanError, match=message):
        plan.plan_sweep(request.model_copy(update={"steps_per_sync": 2}), machine)


def test_a_gpu_sweep_takes_the_gpu_preset():
    """The default preset fits the device."""
    planned = plan_of(device="gpu", num_gpus=2, preset=None)

    assert planned.preset == "gpu"
    assert {1, 2} == {trial.spec.num_replicas for trial in planned.trials}


@pytest.mark.parametrize(
    ("options", "expected"), [({}, "never"), ({"external_writes": "detect"}, "detect")]
)
def test_what_a_preset_promises_is_recorded(options, expected):
    """In every trial, whatever its backend; the user's option holds."""
    planned = plan_of(device="gpu", num_gpus=1, preset=None, options=options)

    assert planned.trials
    for trial in planned.trials:
        assert {"external_writes": expected} == trial.spec.options
    assert all(not trial.spec.options for trial in plan_of().trials)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"data": "synthetic"}, False),
        ({"data": "synthetic", "budget": "window"}, True),
        ({"budget": "window"}, True),
        ({"budget": "none"}, False),
    ],
)
def test_quality_is_measured_unless_the_data_has_none(fields, expected):
    """Synthetic data has no held-out split."""
    planned = plan_of(**fields)

    assert {expected} == {trial.spec.is_evaluated for trial in planned.trials}


def test_other_code_gives_other_trials(monkeypatch):
    """Results of other code are never reused."""
    before = digest_of()
    monkeypatch.setattr("harness.sources.code_digest.of_trial", lambda *_: "another")

    assert before != digest_of()


@given(requests, st.integers(0, 3))
def test_another_seed_gives_other_trials(fields, seed):
    """The sweep's seed is part of every trial."""
    assume(fields["seed"] != seed)
    other = SweepRequest(workload="resnet50", seed=seed)

    first = {trial.spec.seed for trial in plan_of(**fields).trials}
    second = {trial.spec.seed for trial in plan.plan_sweep(other, TWO_CORES).trials}

    assert first.isdisjoint(second)


def test_a_backend_that_cannot_compile_is_refused_with_those_that_can():
    """Only where the option needs it."""
    (name, *_) = (
        n for n, info in catalog.BACKENDS.items() if "compiled_functions" in info.lacks
    )
    with pytest.raises(
        PlanError,
        match=rf"^option jit='compute' does not work on backend '{name}': .*; use "
        r"--backends single,in_graph,.*, or leave the option out$",
    ):
        plan_of(backends=(name,), options={"jit": "compute"})

    assert plan_of(backends=(name,), options={"jit": "off"}).trials
    found = plan_of(backends=("in_graph",), options={"jit": "compute"}).trials
    assert {"compute"} == {trial.spec.options["jit"] for trial in found}
