"""Trials on GPUs launch kernels from threads of their own; pipelines get the rest."""

import pytest
from fake_nvml import make_gpus
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.cli import commands
from harness.cli.verb import Call
from harness.cli.verbs.sweep_verb import RunRequest
from harness.machine.topology import CpuTopology, LogicalCpu
from harness.placement import allocation, gpu_threads
from harness.placement.processes import processes_of
from harness.run import trial_tree
from results.records import variables
from results.records.models import Order

LAUNCHES = {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}


def _place(num_cores, num_gpus, **options):
    topology = CpuTopology(cpus=tuple(LogicalCpu(cpu=c) for c in range(num_cores)))
    return allocation.place(
        topology,
        num_replicas=num_gpus,
        cores_per_replica=num_cores // num_gpus,
        **options,
    )


def test_a_trial_on_gpus_has_two_launch_threads_per_gpu_in_its_identity():
    """Names that the identity knows, so that another number is another case."""
    found = gpu_threads.with_gpu_threads({"XLA_FLAGS": "x"}, "gpu")

    assert LAUNCHES | {"XLA_FLAGS": "x"} == found
    assert found.keys() <= variables.IDENTITY


@pytest.mark.parametrize(("device", "expected"), [("gpu", LAUNCHES), ("cpu", {})])
def test_a_sweep_plans_trials_with_gpu_threads(
    device, expected, install_gpus, monkeypatch, tmp_path
):
    """Every trial of a plan says so, and so does the identity of its case."""
    install_gpus(make_gpus(2))
    for name in LAUNCHES:
        monkeypatch.delenv(name, raising=False)
    planned = []

    commands.sweep(
        RunRequest(
            is_dry_run=True,
            workload="resnet50",
            preset="smoke",
            order=Order.SEQUENTIAL,
            device=device,
            replicas=(1, 2),
            runs_dir=tmp_path,
            is_json=True,
        ),
        Call(command=("harness",), overrides={}),
        check=planned.append,
    )

    trials = planned[0].trials
    assert trials
    for trial in trials:
        assert expected == gpu_threads.of_gpu_threads(trial.spec.variables)


def test_what_the_user_set_is_kept():
    """The number of launch threads may be what a study compares."""
    mine = {"TF_GPU_THREAD_COUNT": "4"}

    assert LAUNCHES | mine == gpu_threads.with_gpu_threads(mine, "gpu")


def test_a_trial_on_the_cpu_has_none():
    """Its identity is what it was, so that its studies can be resumed."""
    assert {} == gpu_threads.with_gpu_threads({}, "cpu")


def test_the_processes_of_a_trial_get_what_its_identity_says(make_spec, tmp_path):
    """Also after the user's own variables have changed: a plan is what is run."""
    place = _place(4, 1, device="gpu")
    spec = make_spec(device="gpu", variables=LAUNCHES)
    base = {"TF_GPU_THREAD_COUNT": "9"}

    found = trial_tree.trial_variables(spec, place, tmp_path, base=base)

    assert LAUNCHES == gpu_threads.of_gpu_threads(found)


def test_a_trial_on_the_cpu_gets_no_launch_threads(make_spec, tmp_path):
    """Nothing of its environment changes."""
    place = _place(4, 1, device="cpu")

    found = trial_tree.trial_variables(make_spec(), place, tmp_path, base={})

    assert {} == gpu_threads.of_gpu_threads(found)


@pytest.mark.parametrize(
    ("num_cores", "num_gpus", "intra", "inter"),
    [(64, 8, 6, 48), (16, 1, 14, 14), (8, 8, 1, 8), (16, 8, 1, 8), (24, 8, 1, 8)],
)
def test_pools_get_the_cores_that_launches_leave(num_cores, num_gpus, intra, inter):
    """Of 64 cores with 8 GPUs, 16 launch and 48 read and decode."""
    place = _place(num_cores, num_gpus, device="gpu")

    assert (intra, inter) == (place.num_intra_op_threads, place.num_inter_op_threads)


@given(st.integers(1, 8), st.integers(3, 32))
def test_launches_and_pools_fit_on_the_cores(num_gpus, cores):
    """With three cores per GPU or more, no thread waits for a core."""
    place = _place(num_gpus * cores, num_gpus, device="gpu")
    num_launch = gpu_threads.LAUNCH_THREADS_PER_GPU * num_gpus

    assert num_gpus * cores == place.num_inter_op_threads + num_launch
    assert cores == place.num_intra_op_threads + gpu_threads.LAUNCH_THREADS_PER_GPU


def test_a_process_of_a_cluster_serves_one_gpu():
    """Of its 8 cores, 2 launch and 6 are for pipelines."""
    processes = processes_of(catalog.backend("multi_worker"), 4)
    place = _place(32, 4, device="gpu", processes=processes)

    assert 6 == place.num_inter_op_threads == place.num_intra_op_threads


def test_a_process_of_a_cluster_can_communicate_while_it_computes():
    """Two threads between operations, however few its cores."""
    processes = processes_of(catalog.backend("multi_worker"), 4)
    place = _place(8, 4, device="gpu", processes=processes)

    assert (1, 2) == (place.num_intra_op_threads, place.num_inter_op_threads)


def test_threads_of_trials_on_the_cpu_are_as_before():
    """One per replica between operations, all cores of a replica within one."""
    place = _place(16, 4, device="cpu")

    assert (4, 4) == (place.num_intra_op_threads, place.num_inter_op_threads)
