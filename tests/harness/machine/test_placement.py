"""Processes of a trial on one host or several; their cores, GPUs and threads."""

from types import SimpleNamespace

import pytest
from command_lines import smoke_sweep
from fake_machine import SAYS_VARIABLES, make_gpus, variables_of
from hypothesis import given
from hypothesis import strategies as st

from harness import CpuTopology, ExitCode, LogicalCpu, read_topology
from harness.machine import allocation
from results import Control, Store


def machine(num_cores=4, *, num_nodes=1, num_threads=1, quota=None):
    """Returns a topology whose second threads are numbered after all first ones."""
    cpus = []
    for thread in range(num_threads):
        for node in range(num_nodes):
            for core in range(num_cores):
                cpu = (thread * num_nodes + node) * num_cores + core
                cpus.append(LogicalCpu(cpu=cpu, node=node, package=node, core=core))
    return CpuTopology(cpus=tuple(cpus), quota_cores=quota)


@pytest.fixture
def make_trial(make_spec):
    def make(backend="in_graph", num_replicas=2, share=1, **fields):
        variables = allocation.share_identity(share)
        spec = make_spec(
            **{"variables": variables} | fields,
            backend=backend,
            num_replicas=num_replicas,
        )
        return spec, allocation.processes_of_trial(spec)

    return make


W0, W1, W2 = (("worker", index) for index in range(3))
CHIEF, SERVER = ("chief", 0), ("ps", 0)
INDEPENDENT = {"control": Control.INDEPENDENT}


@pytest.mark.parametrize(
    ("backend", "num_replicas", "fields", "members", "ranks", "num_here"),
    [
        ("in_graph", 3, {}, (), (), 3),
        ("multi_worker", 3, {}, (W0, W1, W2), (0, 1, 2), 1),
        ("multi_worker", 4, {"share": 2}, (W0, W1), (0, 1), 2),
        ("multi_worker", 4, {"share": 4}, (W0,), (0,), 4),
        ("multi_worker", 1, {"share": 4}, (W0,), (0,), 1),
        ("multi_worker", 6, {"share": 2}, (W0, W1, W2), (0, 1, 2), 2),
        ("multi_worker_in_graph", 3, {}, (W0, W1, W2), (0, None, None), 0),
        ("async", 2, {}, (CHIEF, W0, W1, SERVER), (0, None, None, None), 0),
        ("in_graph", 3, INDEPENDENT, (W0, W1, W2), (0, 1, 2), 1),
        ("multi_worker", 3, INDEPENDENT | {"share": 3}, (W0, W1, W2), (0, 1, 2), 1),
    ],
)
def test_a_trial_has_the_processes_of_its_backend_and_measures_some(
    make_trial, backend, num_replicas, fields, members, ranks, num_here
):
    spec, found = make_trial(backend, num_replicas, **fields)

    assert members == found.members
    assert ranks == tuple(map(found.rank, members))
    assert (sum(rank is not None for rank in ranks) or 1) == found.num_ranks
    assert num_here == found.num_replicas_here(num_replicas)
    assert fields.get("share", 1) == allocation.replicas_per_worker(spec.variables)
    is_independent = "control" in fields
    assert (is_independent, bool(members) and not is_independent) == (
        found.is_separate,
        found.is_cluster,
    )


def gpus(*nodes):
    return {"gpu_nodes": nodes}


PLACED = [
    # Replicas of one core never share a physical core while there is another.
    (machine(num_threads=2), ("in_graph", 4), {}, ((0, 1, 2, 3),), (1, 4)),
    (machine(num_threads=2), ("in_graph", 2, 2), {}, ((0, 1, 4, 5),), (2, 2)),
    # Under a quota of 4, four whole cores are better than two shared ones.
    (machine(num_threads=2, quota=4), ("in_graph", 1, 2), {}, ((0, 1),), (2, 1)),
    (machine(num_threads=2, quota=4), ("in_graph", 2, 2), {}, ((0, 1, 2, 3),), (2, 2)),
    (machine(2, num_nodes=2), ("in_graph", 3), {}, ((0, 1, 2),), (1, 3)),
    # Two workers of four take turns on each core; a thread of each communicates.
    (machine(2), ("multi_worker", 4), {}, ((0,), (1,), (0,), (1,)), (1, 2)),
    (machine(8), ("multi_worker", 4, 2, 2), {}, ((0, 1, 2, 3), (4, 5, 6, 7)), (2, 3)),
    # Coordinators and servers may use all cores of a trial, and add none.
    (machine(), ("async", 2), {}, ((0, 1), (0,), (1,), (0, 1)), (1, 2)),
    # Programs that share nothing have what a trial of one replica has.
    (machine(), ("solo", 2, 2), {}, ((0, 1), (2, 3)), (2, 1)),
    # Each host starts again at its first core.
    (
        *(machine(), ("multi_worker", 4, 2), {"num_hosts": 2}),
        *(((0, 1), (2, 3), (0, 1), (2, 3)), (2, 2)),
    ),
    (
        *(machine(), ("multi_worker", 8, 1, 4), {"num_hosts": 2}),
        *(((0, 1, 2, 3), (0, 1, 2, 3)), (1, 5)),
    ),
    # A coordinator uses the cores of the worker on its host.
    (machine(), ("async", 2, 2), {"num_hosts": 2}, ((0, 1),) * 4, (2, 2)),
    # One process has the cores near all its GPUs.
    (
        *(machine(8, num_nodes=2), ("gpu", 2, 4), gpus(0, 1)),
        *(((0, 1, 2, 3, 8, 9, 10, 11),), (2, 4)),
    ),
    # GPUs of node 1 alone, as with CUDA_VISIBLE_DEVICES=4,5, leave node 0 alone.
    (machine(num_nodes=2), ("gpu", 2, 2), gpus(1, 1), ((4, 5, 6, 7),), (1, 2)),
    # A node with too few cores is completed from one that no GPU is near.
    (
        *(machine(num_nodes=3), ("gpu", 3, 3), gpus(0, 0, 1)),
        *(((0, 1, 2, 3, 4, 5, 6, 7, 8),), (1, 3)),
    ),
]
"""Machine; backend, replicas, cores and replicas per worker; hosts or nodes of GPUs;
then the cores of each process, and threads within and between operations."""


@pytest.mark.parametrize(("topology", "trial", "where", "cpusets", "threads"), PLACED)
def test_processes_have_cores_near_their_gpus_and_threads_that_fit(
    make_trial, topology, trial, where, cpusets, threads
):
    backend, num_replicas, num_cores, share, *_ = (*trial, 1, 1)[:4]
    named = {"solo": {"control": Control.INDEPENDENT}, "gpu": {"device": "gpu"}}.get(
        backend
    )
    spec, processes = make_trial(
        "in_graph" if named else backend,
        num_replicas,
        share,
        cores_per_replica=num_cores,
        **named or {},
    )
    found = allocation.place_trial(topology, spec, processes, **where)
    num_hosts = where.get("num_hosts", 1)

    assert cpusets == found.cpusets
    assert threads == (found.num_intra_op_threads, found.num_inter_op_threads)
    num_wanted = num_replicas * num_cores
    num_available = num_hosts * topology.num_available_cores
    assert (num_wanted > num_available) == found.is_oversubscribed
    sharing = "exclusive" if spec.device == "gpu" else "shared"
    assert sharing == found.device_sharing


@given(
    num_nodes=st.integers(1, 4),
    per_node=st.integers(1, 9),
    num_per_gpu=st.integers(1, 6),
    nodes=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=9),
)
def test_no_core_is_lost_or_given_twice(num_nodes, per_node, num_per_gpu, nodes):
    cpus = [*machine(per_node, num_nodes=num_nodes).cpus]
    ordered = allocation.near_gpus(cpus, num_per_gpu, nodes)

    assert cpus == sorted(ordered, key=lambda cpu: cpu.cpu)
    assert cpus == allocation.near_gpus(cpus, num_per_gpu, [None] * len(nodes))


def place_one_process(topology, num_replicas, cores_per_replica, num_devices=1):
    spec = SimpleNamespace(
        num_replicas=num_replicas,
        cores_per_replica=cores_per_replica,
        devices_per_replica=num_devices,
        device="cpu",
    )
    return allocation.place_trial(topology, spec, allocation.ONE_PROCESS)


@given(st.integers(1, 2), st.integers(1, 8), st.integers(1, 2), st.integers(1, 40))
def test_more_replicas_than_cores_are_marked(num_nodes, num_cores, threads, replicas):
    topology = machine(num_cores, num_nodes=num_nodes, num_threads=threads)
    num_available = num_nodes * num_cores * threads
    cores = allocation.cores_per_replica(num_available, [replicas])
    place = place_one_process(topology, replicas, cores)

    assert (replicas > num_available) == place.is_oversubscribed
    assert min(replicas * cores, num_available) == len(set(place.cpusets[0]))
    assert place.num_inter_op_threads <= len(place.cpusets[0])


@pytest.mark.parametrize(
    ("num_available", "replicas", "num_devices", "expected"),
    [
        (2, (1, 2), 1, 1),
        (2, (1, 2, 4), 1, 1),
        (8, (1, 2), 1, 4),
        (16, (1, 2, 4), 1, 4),
        (1, (2,), 1, 1),
        (2, (1, 2), 2, 2),
        (8, (1, 2), 2, 4),
        (1, (1,), 2, 2),
    ],
)
def test_the_largest_case_that_fits_fills_the_machine(
    num_available, replicas, num_devices, expected
):
    found = allocation.cores_per_replica(num_available, replicas, num_devices)
    place = place_one_process(machine(num_available), replicas[0], found, num_devices)

    assert expected == found
    assert expected // num_devices == place.num_intra_op_threads
    num_inter = min(num_available, replicas[0] * num_devices)
    assert num_inter == place.num_inter_op_threads


@pytest.mark.parametrize(
    ("num_members", "num_hosts", "block"),
    [(2, 2, 1), (3, 2, 2), (4, 2, 2), (1, 4, 1), (0, 2, 1), (16, 2, 8)],
)
def test_hosts_get_blocks_of_consecutive_members(num_members, num_hosts, block):
    members = tuple(("worker", index) for index in range(num_members))
    processes = allocation.Processes(members=members, num_ranks=max(1, num_members))

    assert block == allocation.members_per_host(num_members, num_hosts)
    expected = min(block, num_members) or 5
    assert expected == allocation.num_replicas_on_first(processes, 5, num_hosts)


@pytest.mark.parametrize(
    ("num_cores", "num_gpus", "intra", "inter", "backend"),
    [
        (64, 8, 6, 48, "in_graph"),  # 16 cores launch, and 48 read and decode
        (16, 1, 14, 14, "in_graph"),
        (8, 8, 1, 8, "in_graph"),
        (16, 8, 1, 8, "in_graph"),
        (24, 8, 1, 8, "in_graph"),
        (32, 4, 6, 6, "multi_worker"),  # each process serves one GPU
        (8, 4, 1, 2, "multi_worker"),  # and communicates, however few its cores
    ],
)
def test_pools_get_the_cores_that_launches_leave(
    make_trial, num_cores, num_gpus, intra, inter, backend
):
    each = {"cores_per_replica": num_cores // num_gpus, "device": "gpu"}
    place = allocation.place_trial(
        machine(num_cores), *make_trial(backend, num_gpus, **each)
    )

    assert (intra, inter) == (place.num_intra_op_threads, place.num_inter_op_threads)


LAUNCHES = {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}
SWEEP = smoke_sweep(
    "--backends=in_graph --mode=weak --repeats=1 --order=sequential --no-match "
    "--budget=none --study=s"
)


@pytest.mark.parametrize("count", ["2", "4"])
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_trial_on_gpus_has_launch_threads_in_its_identity(
    harness, gpu_overrides, install_gpus, monkeypatch, tmp_path, device, count
):
    """They are the plan's, whatever the variables are when a trial starts."""
    install_gpus(make_gpus(2))
    for name in LAUNCHES:
        monkeypatch.delenv(name, raising=False)
    if count != "2":
        monkeypatch.setenv("TF_GPU_THREAD_COUNT", count)

    def canary(_core):  # also before the second trial
        if device == "gpu":
            monkeypatch.setenv("TF_GPU_THREAD_COUNT", "9")
        return 0.2

    changes = {"worker_command": SAYS_VARIABLES, "canary": canary}
    words = (*SWEEP, f"--device={device}", "--replicas=1,2")
    code, _, err = harness(*words, overrides=gpu_overrides | changes)
    assert ExitCode.NOTHING_MEASURED == code, err
    ours = {} if device == "cpu" else LAUNCHES
    mine = {} if count == "2" else {"TF_GPU_THREAD_COUNT": count}
    trials = [*Store.open(tmp_path / "runs" / "s").trials()]
    assert 2 == len(trials)
    for trial in trials:
        given_to = variables_of(tmp_path, trial.trial_id)

        assert ours | mine == allocation.gpu_thread_variables(trial.spec.variables)
        assert ours | mine == allocation.gpu_thread_variables(given_to)


CGROUP, FILES = "proc/self/cgroup", "sys/fs/cgroup"
V1 = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "2000 1000", "a/b/cpu.max": "max 1000"}, 2.0),
        ("4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n", {"cpu,cpuacct/x": "300000"}, 3.0),
        ("1:cpu:/\n", {"cpu": "-1"}, None),
        # In a container: the path is the host's, the mount is the own group.
        ("1:cpu:/docker/0123\n", {"cpu": "50000"}, 0.5),
    ],
)
def test_cgroup_quotas_of_both_versions_are_read(fake_root, cgroup, files, expected):
    if cgroup:
        fake_root.write(CGROUP, cgroup)
    for name, text in files.items():
        is_v2 = name.endswith("cpu.max")
        fake_root.write(f"{FILES}/{name}" + f"/{V1[0]}" * (not is_v2), f"{text}\n")
        if not is_v2:
            fake_root.write(f"{FILES}/{name}/{V1[1]}", "100000\n")

    assert expected == read_topology(fake_root.path).quota_cores


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.9, 2), (0.5, 1), (9, 4)])
def test_available_cores_are_limited_by_the_quota(quota, expected):
    assert expected == machine(quota=quota).num_available_cores


def test_topology_is_read_from_sysfs(fake_root):
    for cpu, (node, core) in enumerate([(0, 0), (1, 0), (0, 0), (1, 0)]):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        fake_root.write(f"{base}/topology/physical_package_id", f"{node}\n")
        fake_root.write(f"{base}/topology/core_id", f"{core}\n")
        fake_root.write(f"{base}/node{node}/x", "")
    topology = read_topology(fake_root.path, frozenset({0, 1, 3}))

    assert (
        LogicalCpu(cpu=0, node=0, package=0, core=0),
        LogicalCpu(cpu=1, node=1, package=1, core=0),
        LogicalCpu(cpu=3, node=1, package=1, core=0),
    ) == topology.cpus
    assert 2 == topology.num_physical_cores
    nothing = read_topology(fake_root.path / "x", frozenset({2, 5}))
    assert 2 == nothing.num_physical_cores
