"""Processes of a trial on several hosts of the same kind: cores of each host's own."""

import pytest

from harness import catalog
from harness.machine.topology import CpuTopology, LogicalCpu
from harness.placement import allocation, hosts
from harness.placement.processes import (
    processes_of,
    processes_of_trial,
    share_identity,
)


@pytest.fixture
def four_cores():
    return CpuTopology(cpus=tuple(LogicalCpu(cpu=cpu, core=cpu) for cpu in range(4)))


@pytest.mark.parametrize(
    ("num_members", "num_hosts", "block"),
    [(2, 2, 1), (3, 2, 2), (4, 2, 2), (1, 4, 1), (0, 2, 1), (16, 2, 8)],
)
def test_hosts_get_blocks_of_consecutive_members(num_members, num_hosts, block):
    """The last host may have fewer."""
    assert block == hosts.members_per_host(num_members, num_hosts)


def test_each_host_starts_again_at_its_first_core(make_spec, four_cores):
    """Four workers of two cores on two hosts do not share any."""
    spec = make_spec(backend="multi_worker", num_replicas=4, cores_per_replica=2)
    processes = processes_of(catalog.backend("multi_worker"), 4)

    place = hosts.place(four_cores, spec, processes, num_hosts=2)

    assert ((0, 1), (2, 3), (0, 1), (2, 3)) == place.cpusets
    assert not place.is_oversubscribed
    assert 2 == hosts.num_replicas_on_first(processes, 4, 2)


def test_a_host_has_the_cores_and_gpus_of_all_replicas_of_its_workers(
    make_spec, four_cores
):
    """Two workers of four replicas on two hosts: one worker fills a host."""
    spec = make_spec(
        backend="multi_worker", num_replicas=8, variables=share_identity(4)
    )
    processes = processes_of_trial(spec)

    place = hosts.place(four_cores, spec, processes, num_hosts=2)

    assert ((0, 1, 2, 3), (0, 1, 2, 3)) == place.cpusets
    assert not place.is_oversubscribed
    assert 4 == hosts.num_replicas_on_first(processes, 8, 2)


def test_servers_share_the_cores_of_the_host_that_they_are_on(make_spec, four_cores):
    """A coordinator on the first host may use the cores of the worker beside it."""
    backend = "async"
    spec = make_spec(backend=backend, num_replicas=2, cores_per_replica=2)
    processes = processes_of(catalog.backend(backend), 2)

    place = hosts.place(four_cores, spec, processes, num_hosts=2)

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
    ) == hosts.place(four_cores, spec, processes)


def test_too_few_cores_on_one_of_the_hosts_is_oversubscribed(make_spec, four_cores):
    """Nine workers of one core on two hosts of four cores."""
    spec = make_spec(backend="multi_worker", num_replicas=9, cores_per_replica=1)
    processes = processes_of(catalog.backend("multi_worker"), 9)

    assert hosts.place(four_cores, spec, processes, num_hosts=2).is_oversubscribed
