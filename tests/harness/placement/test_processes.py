"""Which processes a trial has, on one host or several, and what each gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.errors import PlanError
from harness.machine.machine_state import CpuTopology, LogicalCpu
from harness.placement import allocation
from harness.placement.allocation import (
    check_share,
    processes_of,
    processes_of_trial,
    replicas_per_worker,
    share_identity,
)
from results.records.models import Control


def backend_of(processes, not_swept_because=""):
    return catalog.BackendInfo(
        name="some",
        target="m:C",
        description="",
        kind="ours",
        processes=processes,
        not_swept_because=not_swept_because,
    )


def placed(processes, num_replicas, cores, num_available):
    cpus = tuple(LogicalCpu(cpu=i, core=i) for i in range(num_available))
    return allocation.place(
        CpuTopology(cpus=cpus),
        num_replicas=num_replicas,
        cores_per_replica=cores,
        device="cpu",
        processes=processes,
    )


def test_one_process_has_no_cluster():
    """All replicas in one rank, as many as there may be."""
    found = processes_of(backend_of(catalog.ONE_PROCESS), 4)

    assert not found.is_cluster
    assert 1 == found.num_ranks


def test_every_worker_of_between_graph_replication_is_measured():
    """Rank r is worker r."""
    found = processes_of(backend_of(catalog.WORKERS), 3)

    assert (("worker", 0), ("worker", 1), ("worker", 2)) == found.members
    assert [0, 1, 2] == [found.rank(member) for member in found.members]


def test_workers_that_serve_are_not_measured():
    """Worker 0 runs the program; its times are those of all replicas."""
    found = processes_of(backend_of(catalog.SERVED_WORKERS), 3)

    assert [0, None, None] == [found.rank(member) for member in found.members]


def test_parameter_servers_come_with_a_chief_that_is_measured():
    """The chief starts every step, so it sees every duration."""
    found = processes_of(backend_of(catalog.PARAMETER_SERVERS), 2)

    assert (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)) == found.members
    assert [0, None, None, None] == [found.rank(member) for member in found.members]
    assert [False, True, True, False] == [
        found.runs_replicas(member) for member in found.members
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (catalog.ONE_PROCESS, 3),
        (catalog.WORKERS, 1),
        (catalog.SERVED_WORKERS, 0),
        (catalog.PARAMETER_SERVERS, 0),
    ],
)
def test_replicas_of_a_measured_process(kind, expected):
    """None where processes compute that are not measured."""
    assert expected == processes_of(backend_of(kind), 3).num_replicas_here(3)


@given(num_replicas=st.integers(1, 6), cores=st.integers(1, 3))
def test_workers_have_cores_of_their_own_while_they_suffice(num_replicas, cores):
    """Disjoint, equal, and together what one process would have had."""
    processes = processes_of(backend_of(catalog.WORKERS), num_replicas)

    found = placed(processes, num_replicas, cores, num_replicas * cores)

    assert [cores] * num_replicas == [len(cpuset) for cpuset in found.cpusets]
    assert num_replicas * cores == len({c for cpuset in found.cpusets for c in cpuset})
    assert not found.is_oversubscribed


def test_too_many_workers_take_turns_and_it_is_said():
    """Four workers on two cores: two on each."""
    processes = processes_of(backend_of(catalog.WORKERS), 4)

    found = placed(processes, 4, 1, 2)

    assert ((0,), (1,), (0,), (1,)) == found.cpusets
    assert found.is_oversubscribed


def test_coordinators_and_servers_may_use_all_cores_and_add_none():
    """They wait most of the time; a trial has the cores of its replicas."""
    processes = processes_of(backend_of(catalog.PARAMETER_SERVERS), 2)

    found = placed(processes, 2, 1, 4)

    assert ((0, 1), (0,), (1,), (0, 1)) == found.cpusets


@pytest.mark.parametrize(
    ("num_replicas", "share", "expected"),
    [(4, 2, (2, 2)), (4, 4, (1, 4)), (1, 4, (1, 1)), (6, 2, (3, 2))],
)
def test_workers_divide_the_replicas(num_replicas, share, expected):
    """A trial with fewer replicas than a worker could run has one worker."""
    found = processes_of(
        backend_of(catalog.WORKERS), num_replicas, replicas_per_worker=share
    )

    assert expected == (found.count("worker"), found.replicas_per_worker)
    assert found.num_ranks == len(found.members) == expected[0]
    assert expected[1] == found.num_replicas_here(num_replicas)


def test_a_worker_has_cores_for_each_of_its_replicas_and_a_thread_to_communicate():
    """Two workers of two replicas with two cores each, on eight cores."""
    processes = processes_of(backend_of(catalog.WORKERS), 4, replicas_per_worker=2)

    found = placed(processes, 4, 2, 8)

    assert ((0, 1, 2, 3), (4, 5, 6, 7)) == found.cpusets
    assert (3, 2) == (found.num_inter_op_threads, found.num_intra_op_threads)
    assert not found.is_oversubscribed


def test_solo_has_a_program_per_replica_whatever_a_worker_runs():
    """They show what replicas reach that share nothing but the machine."""
    found = processes_of(backend_of(catalog.WORKERS), 4, Control.SOLO, 2)

    assert 4 == found.num_ranks


@pytest.mark.parametrize("share", [1, 2, 8])
def test_the_identity_of_a_trial_says_what_a_worker_runs(make_spec, share):
    """So that figures of different shares are never of the same case."""
    variables = share_identity(share)
    spec = make_spec(backend="multi_worker", num_replicas=8, variables=variables)

    assert share == replicas_per_worker(spec.variables)
    assert 8 // share == processes_of_trial(spec).num_ranks
    assert bool(variables) == (share > 1)


@pytest.mark.parametrize(
    ("backends", "replicas", "device", "message"),
    [
        (["in_graph", "single"], [2], "cpu", r"2 has no effect on in_graph, single,"),
        (["multi_worker"], [1, 3], "cpu", r"3 replicas are not divisible by 2; use 2"),
        (["tf_multi_worker"], [2], "cpu", r"with --device cpu: the stock strategy has"),
    ],
)
def test_a_share_that_workers_cannot_run_is_refused(
    backends, replicas, device, message
):
    """Before anything is written; the message says what can be done."""
    with pytest.raises(PlanError, match=message):
        check_share(
            share_identity(2),
            [catalog.backend(name) for name in backends],
            replicas,
            device,
        )


@pytest.mark.parametrize(
    ("backends", "replicas", "device"),
    [
        (["in_graph", "multi_worker"], [1, 2, 4], "cpu"),
        (["tf_multi_worker"], [2, 4], "gpu"),
    ],
)
def test_a_share_that_workers_can_run_is_accepted(backends, replicas, device):
    """Beside backends without workers as well, which it does not change."""
    check_share(
        share_identity(2),
        [catalog.backend(name) for name in backends],
        replicas,
        device,
    )


def test_a_backend_that_cannot_be_started_here_is_refused_with_its_reason(monkeypatch):
    made = backend_of(catalog.WORKERS, not_swept_because="start it with mpirun")
    monkeypatch.setitem(catalog.BACKENDS, "some", made)

    with pytest.raises(PlanError, match=r"'some' cannot be swept: start it with mpir"):
        catalog.backend("some")


def test_solo_is_a_process_per_replica_whatever_the_backend():
    """They are all measured, and know nothing of each other."""
    found = processes_of(backend_of(catalog.ONE_PROCESS), 3, Control.SOLO)

    assert (("worker", 0), ("worker", 1), ("worker", 2)) == found.members
    assert 3 == found.num_ranks
    assert found.are_several
    assert found.is_separate
    assert not found.is_cluster


def test_each_program_of_solo_has_the_cores_of_one_replica_for_itself():
    """And one inter-op thread, as a trial with one replica has."""
    processes = processes_of(backend_of(catalog.ONE_PROCESS), 2, Control.SOLO)

    found = placed(processes, 2, 2, 4)

    assert ((0, 1), (2, 3)) == found.cpusets
    assert (1, 2) == (found.num_inter_op_threads, found.num_intra_op_threads)


@pytest.fixture
def four_cores():
    return CpuTopology(cpus=tuple(LogicalCpu(cpu=cpu, core=cpu) for cpu in range(4)))


@pytest.mark.parametrize(
    ("num_members", "num_hosts", "block"),
    [(2, 2, 1), (3, 2, 2), (4, 2, 2), (1, 4, 1), (0, 2, 1), (16, 2, 8)],
)
def test_hosts_get_blocks_of_consecutive_members(num_members, num_hosts, block):
    """The last host may have fewer."""
    assert block == allocation.members_per_host(num_members, num_hosts)


def test_each_host_starts_again_at_its_first_core(make_spec, four_cores):
    """Four workers of two cores on two hosts do not share any."""
    spec = make_spec(backend="multi_worker", num_replicas=4, cores_per_replica=2)
    processes = processes_of(catalog.backend("multi_worker"), 4)

    place = allocation.place_trial(four_cores, spec, processes, num_hosts=2)

    assert ((0, 1), (2, 3), (0, 1), (2, 3)) == place.cpusets
    assert not place.is_oversubscribed
    assert 2 == allocation.num_replicas_on_first(processes, 4, 2)


def test_a_host_has_the_cores_and_gpus_of_all_replicas_of_its_workers(
    make_spec, four_cores
):
    """Two workers of four replicas on two hosts: one worker fills a host."""
    spec = make_spec(
        backend="multi_worker", num_replicas=8, variables=share_identity(4)
    )
    processes = processes_of_trial(spec)

    place = allocation.place_trial(four_cores, spec, processes, num_hosts=2)

    assert ((0, 1, 2, 3), (0, 1, 2, 3)) == place.cpusets
    assert not place.is_oversubscribed
    assert 4 == allocation.num_replicas_on_first(processes, 8, 2)


def test_servers_share_the_cores_of_the_host_that_they_are_on(make_spec, four_cores):
    """A coordinator on the first host may use the cores of the worker beside it."""
    backend = "async"
    spec = make_spec(backend=backend, num_replicas=2, cores_per_replica=2)
    processes = processes_of(catalog.backend(backend), 2)

    place = allocation.place_trial(four_cores, spec, processes, num_hosts=2)

    assert (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)) == processes.members
    assert ((0, 1), (0, 1), (0, 1), (0, 1)) == place.cpusets


@pytest.mark.parametrize("backend", ["in_graph", "multi_worker"])
def test_one_host_is_placed_as_without_hosts(make_spec, four_cores, backend):
    """Nothing changes for trials of one machine."""
    spec = make_spec(backend=backend, num_replicas=2)
    processes = processes_of(catalog.backend(backend), 2)

    assert allocation.place(
        four_cores,
        num_replicas=2,
        cores_per_replica=1,
        device="cpu",
        processes=processes,
    ) == allocation.place_trial(four_cores, spec, processes)


def test_too_few_cores_on_one_of_the_hosts_is_oversubscribed(make_spec, four_cores):
    """Nine workers of one core on two hosts of four cores."""
    spec = make_spec(backend="multi_worker", num_replicas=9, cores_per_replica=1)
    processes = processes_of(catalog.backend("multi_worker"), 9)

    assert allocation.place_trial(
        four_cores, spec, processes, num_hosts=2
    ).is_oversubscribed
