"""Replicas get equal, disjoint cores near their GPUs, and threads that fit on them."""

import pytest
from fake_nvml import make_gpus
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.cli import commands
from harness.cli.verb import Call
from harness.cli.verbs.sweep_verb import RunRequest
from harness.machine.machine_state import (
    CpuTopology,
    LogicalCpu,
    read_quota_cores,
    read_topology,
)
from harness.placement import allocation as placement
from harness.placement.allocation import processes_of
from harness.run import trial_tree
from results.records import program
from results.records.models import Order


def topology_of(num_nodes=1, num_cores=4, num_threads=1, quota=None):
    """Returns a topology whose second threads are numbered after all first ones."""
    cpus = []
    for thread in range(num_threads):
        for node in range(num_nodes):
            for core in range(num_cores):
                cpu = (thread * num_nodes + node) * num_cores + core
                cpus.append(LogicalCpu(cpu=cpu, node=node, package=node, core=core))
    return CpuTopology(cpus=tuple(cpus), quota_cores=quota)


@pytest.mark.parametrize(
    ("num_available", "replicas", "expected"),
    [
        (2, (1, 2), 1),
        (2, (1, 2, 4), 1),
        (8, (1, 2), 4),
        (16, (1, 2, 4), 4),
        (1, (2,), 1),
    ],
)
def test_the_largest_case_that_fits_fills_the_machine(
    num_available, replicas, expected
):
    """Cores per replica follow from the largest N that is not oversubscribed."""
    assert expected == placement.cores_per_replica(num_available, replicas)


@pytest.mark.parametrize(
    ("num_available", "replicas", "cores", "intra", "inter"),
    [
        (2, (1,), 2, 1, 2),
        (2, (1, 2), 2, 1, 2),
        (8, (1, 2), 4, 2, 4),
        (1, (1,), 2, 1, 1),
    ],
)
def test_each_device_of_a_replica_has_its_cores_and_threads(
    num_available, replicas, cores, intra, inter
):
    """One thread inside an operation per core of a stage, as many between as stages."""
    found = placement.cores_per_replica(num_available, replicas, 2)
    place = placement.place(
        topology_of(num_cores=num_available, num_threads=1),
        num_replicas=replicas[-1],
        cores_per_replica=found,
        devices_per_replica=2,
        device="cpu",
    )

    assert (cores, intra, inter) == (
        found,
        place.num_intra_op_threads,
        place.num_inter_op_threads,
    )


@pytest.mark.parametrize(
    ("topology", "cpusets"),
    [
        # Replicas of one core never share a physical core while there is another.
        ({"num_threads": 2}, {(4, 1): (0, 1, 2, 3), (5, 1): (0, 1, 2, 3, 4)}),
        # A replica of two cores is one physical core with both threads.
        ({"num_threads": 2}, {(1, 2): (0, 4), (2, 2): (0, 1, 4, 5)}),
        # Under a quota of 4, four whole cores are better than two shared ones.
        ({"num_threads": 2, "quota": 4.0}, {(1, 2): (0, 1), (2, 2): (0, 1, 2, 3)}),
        # A replica stays on one node while that node has room.
        ({"num_nodes": 2, "num_cores": 2}, {(2, 1): (0, 1), (3, 1): (0, 1, 2)}),
    ],
)
def test_cores_are_chosen_by_what_replicas_would_share(topology, cpusets):
    """By the number of replicas and the cores of each."""
    made = topology_of(**topology)

    for (num_replicas, cores), cpuset in cpusets.items():
        place = placement.place(
            made, num_replicas=num_replicas, cores_per_replica=cores, device="cpu"
        )
        assert cpuset == place.cpusets[0]


@given(st.integers(1, 2), st.integers(1, 8), st.integers(1, 2), st.integers(1, 40))
def test_more_replicas_than_cores_are_marked(num_nodes, num_cores, threads, replicas):
    """Oversubscription is allowed, and never silent."""
    topology = topology_of(num_nodes, num_cores, threads)
    cores = placement.cores_per_replica(topology.num_available_cores, [replicas])
    place = placement.place(
        topology, num_replicas=replicas, cores_per_replica=cores, device="cpu"
    )
    num_available = num_nodes * num_cores * threads

    assert (replicas > num_available) == place.is_oversubscribed
    assert min(replicas * cores, num_available) == len(set(place.cpusets[0]))
    assert place.num_inter_op_threads <= len(place.cpusets[0])


def test_virtual_devices_share_and_gpus_do_not():
    """The report's warning hangs on this."""
    topology = topology_of()
    places = {
        device: placement.place(
            topology, num_replicas=2, cores_per_replica=1, device=device
        )
        for device in ("cpu", "gpu")
    }

    assert places["cpu"].device_sharing == "shared"
    assert places["gpu"].device_sharing == "exclusive"


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (
            {
                # In a container: the path is the host's, the mount is the own group.
                "proc/self/cgroup": "1:cpu:/docker/0123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_cgroup_quotas_of_both_versions_are_read(tmp_path, files, expected):
    """The tightest limit over all ancestors rules."""
    for name, text in files.items():
        write(tmp_path, name, text)

    assert expected == read_quota_cores(tmp_path)


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.9, 2), (0.5, 1), (9, 4)])
def test_available_cores_are_limited_by_the_quota(quota, expected):
    """Half a core is still one core to run on."""
    assert expected == topology_of(quota=quota).num_available_cores


def test_topology_is_read_from_sysfs(tmp_path):
    """Node, package and core come from the kernel's files; the mask limits."""
    for cpu, (node, core) in enumerate([(0, 0), (1, 0), (0, 0), (1, 0)]):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        write(tmp_path, f"{base}/topology/physical_package_id", f"{node}\n")
        write(tmp_path, f"{base}/topology/core_id", f"{core}\n")
        (tmp_path / base / f"node{node}").mkdir()
    topology = read_topology(tmp_path, frozenset({0, 1, 3}))

    assert (
        LogicalCpu(cpu=0, node=0, package=0, core=0),
        LogicalCpu(cpu=1, node=1, package=1, core=0),
        LogicalCpu(cpu=3, node=1, package=1, core=0),
    ) == topology.cpus
    assert topology.num_physical_cores == 2


def test_without_sysfs_every_cpu_is_a_core(tmp_path):
    """Unreadable facts fall back to one core per CPU, not to one core."""
    assert read_topology(tmp_path, frozenset({2, 5})).num_physical_cores == 2


def _cpus(num_nodes, per_node):
    return [
        LogicalCpu(cpu=cpu, node=cpu // per_node, package=cpu // per_node, core=cpu)
        for cpu in range(num_nodes * per_node)
    ]


def _nodes_of_gpus(cpus, num_per_gpu, count):
    starts = range(0, count * num_per_gpu, num_per_gpu)
    return [{cpu.node for cpu in cpus[i : i + num_per_gpu]} for i in starts]


def test_four_gpus_on_each_of_two_nodes_get_cores_of_their_own():
    """GPUs 4 to 7 are on node 1; cores are numbered across the nodes."""
    cpus = _cpus(2, 48)
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    ordered = placement.near_gpus(cpus, 8, nodes)

    assert [{node} for node in nodes] == _nodes_of_gpus(ordered, 8, 8)


def test_gpus_of_node_1_alone_leave_node_0_alone():
    """As with CUDA_VISIBLE_DEVICES=4,5."""
    ordered = placement.near_gpus(_cpus(2, 48), 24, [1, 1])

    assert [{1}, {1}] == _nodes_of_gpus(ordered, 24, 2)


def test_a_trial_takes_the_cores_near_its_gpus():
    """One process has the cores of all its GPUs; two GPUs, one on each node."""
    placed = placement.place(
        CpuTopology(cpus=tuple(_cpus(2, 8))),
        num_replicas=2,
        cores_per_replica=4,
        device="gpu",
        gpu_nodes=[0, 1],
    )

    assert ((0, 1, 2, 3, 8, 9, 10, 11),) == placed.cpusets
    assert "exclusive" == placed.device_sharing


def test_a_node_with_too_few_cores_is_completed_from_others():
    """No GPU takes cores of a node that another GPU needs, while there are others."""
    ordered = placement.near_gpus(_cpus(3, 4), 3, [0, 0, 1])

    assert [0, 1, 2, 3, 7, 8, 4, 5, 6] == [cpu.cpu for cpu in ordered[:9]]


@given(
    num_nodes=st.integers(1, 4),
    per_node=st.integers(1, 9),
    num_per_gpu=st.integers(1, 6),
    nodes=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=9),
)
def test_no_core_is_lost_or_given_twice(num_nodes, per_node, num_per_gpu, nodes):
    """Whatever the kernel says; without nodes the order stays as it was."""
    cpus = _cpus(num_nodes, per_node)
    ordered = placement.near_gpus(cpus, num_per_gpu, nodes)

    assert cpus == sorted(ordered, key=lambda cpu: cpu.cpu)
    assert cpus == placement.near_gpus(cpus, num_per_gpu, [None] * len(nodes))


LAUNCHES = {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}


def _place(num_cores, num_gpus, **options):
    topology = CpuTopology(cpus=tuple(LogicalCpu(cpu=c) for c in range(num_cores)))
    return placement.place(
        topology,
        num_replicas=num_gpus,
        cores_per_replica=num_cores // num_gpus,
        **options,
    )


def test_a_trial_on_gpus_has_two_launch_threads_per_gpu_in_its_identity():
    """Names that the identity knows, so that another number is another case."""
    found = placement.with_gpu_threads({"XLA_FLAGS": "x"}, "gpu")

    assert LAUNCHES | {"XLA_FLAGS": "x"} == found
    assert found.keys() <= program.IDENTITY


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
        assert expected == placement.of_gpu_threads(trial.spec.variables)


def test_what_the_user_set_is_kept():
    """The number of launch threads may be what a study compares."""
    mine = {"TF_GPU_THREAD_COUNT": "4"}

    assert LAUNCHES | mine == placement.with_gpu_threads(mine, "gpu")


def test_the_processes_of_a_trial_get_what_its_identity_says(make_spec, tmp_path):
    """Also after the user's own variables have changed: a plan is what is run."""
    place = _place(4, 1, device="gpu")
    spec = make_spec(device="gpu", variables=LAUNCHES)
    base = {"TF_GPU_THREAD_COUNT": "9"}

    found = trial_tree.trial_variables(spec, place, tmp_path, base=base)

    assert LAUNCHES == placement.of_gpu_threads(found)


def test_a_trial_on_the_cpu_gets_no_launch_threads(make_spec, tmp_path):
    """Nothing of its environment changes."""
    place = _place(4, 1, device="cpu")

    found = trial_tree.trial_variables(make_spec(), place, tmp_path, base={})

    assert {} == placement.of_gpu_threads(found)


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
    num_launch = placement.LAUNCH_THREADS_PER_GPU * num_gpus

    assert num_gpus * cores == place.num_inter_op_threads + num_launch
    assert cores == place.num_intra_op_threads + placement.LAUNCH_THREADS_PER_GPU


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
