"""Slurm's variables: lists, places of tasks, ports, and what is wrong with them."""

import collections
import contextlib
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicator.cluster import environment
from replicator.errors import ClusterConfigError


def step(**changes):
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": "1",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "1",
    }
    return {k: v for k, v in {**variables, **changes}.items() if v is not None}


def read(**changes):
    return environment.detect(step(**changes)).config()


def parts(config):
    """Hosts and ports of all workers."""
    pairs = [address.rpartition(":") for address in config.addresses["worker"]]
    return [host for host, _, _ in pairs], [int(port) for _, _, port in pairs]


def test_a_step_is_a_cluster_of_workers():
    """Two addresses on each node; the first task is the chief; GPUs are not needed.

    The third of four tasks is the first on its node, whose first GPU is its own.
    """
    config = read()
    third = read(SLURM_PROCID="2", SLURM_NODEID="1", SLURM_LOCALID="0")

    assert ("worker", 1) == (config.kind, config.index)
    assert ["n0", "n0", "n1", "n1"] == parts(config)[0]
    assert 1 == config.local_index
    assert not config.is_chief
    assert (2, 0) == (third.worker_id, third.local_index)


MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_slurm_comes_after_what_a_user_sets_and_before_pmix():
    """Slurm says where the others are, PMIx does not."""
    text = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    pmix = {"PMIX_RANK": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}

    assert "a:1" == read(TF_CONFIG=text).address
    assert "Slurm" == environment.detect(step(**pmix)).family
    # mpirun of OpenMPI inside of the allocation: the step is one of its helpers.
    inside = environment.detect(step(**pmix, **MPI))
    assert "OpenMPI" == inside.family


def test_a_batch_script_is_in_no_step():
    """It has the variables of the job only; srun starts the processes."""
    with pytest.raises(ClusterConfigError, match="TF_CONFIG is not set"):
        read(SLURM_STEP_NODELIST=None, SLURM_PROCID="0")


def test_roles_make_servers_of_the_last_tasks():
    config = read(REPLICATOR_ROLES="chief:1,worker:2,ps:1")

    assert ("worker", 0) == (config.kind, config.index)
    assert {"chief": 1, "worker": 2, "ps": 1} == {
        kind: len(of_kind) for kind, of_kind in config.addresses.items()
    }
    assert "n1" == config.addresses["ps"][0].split(":")[0]


def test_roles_are_written_as_they_are_read():
    """What a harness starts in the order of ranks, an engine numbers."""
    members = (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0))
    text = environment.roles_text(members)

    assert "chief:1,worker:2,ps:1" == text
    assert members == environment.members_of({environment.ROLES: text}, len(members))


def test_reserved_ports_are_used():
    """Slurm keeps them for one step: ``srun --resv-ports``."""
    found = parts(read(SLURM_STEP_RESV_PORTS="12000-12001"))

    assert (["n0", "n0", "n1", "n1"], [12000, 12001] * 2) == found


def test_a_program_of_its_own_forgets_the_job():
    variables = step(HOME="/root", TF_CONFIG="{}")
    environment.forget(variables)

    assert {"HOME": "/root"} == variables


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"SLURM_STEP_NODELIST": "n[0-"},
            r"'n\[0-' is not a list of Slurm: .*writes for example 'n\[0-1,5\]",
        ),
        ({"SLURM_STEP_NODELIST": "n[5-1]"}, "'5-1' is wrong"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(y2)"},
            r"'2\(y2\)' is not a list of tasks per node.*'2\(x2\),1'",
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "4"},
            r"counts the tasks of 1 nodes, but SLURM_STEP_NODELIST='n\[0-1\]' has 2",
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": None},
            "is not set, so .* does not know .* with srun",
        ),
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID=4 is out of range: .*makes 4 tasks"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID='x' is not an integer from 0"),
        (
            {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"},
            "is task 0 of node 1, not task 1 of node 0.*--distribution=block",
        ),
        (
            {"SLURM_STEP_RESV_PORTS": "12000"},
            "has 1 ports, but a node has 2 tasks; reserve srun --resv-ports=2",
        ),
        (
            {"REPLICATOR_ROLES": "worker:2"},
            "counts 2 processes, but the job has 4 tasks",
        ),
        ({"REPLICATOR_ROLES": "boss:4"}, "'boss:4' is wrong; kinds are chief, worker"),
        ({"REPLICATOR_ROLES": "worker:2,worker:2"}, "each once"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes, message):
    with pytest.raises(ClusterConfigError, match=message) as caught:
        read(**changes)

    assert "\n" not in str(caught.value)


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,5}[a-z-]", fullmatch=True)
RANGES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(1, 4)),
    min_size=1,
    max_size=4,
)


@given(st.lists(st.tuples(NAMES, RANGES), min_size=1, max_size=4))
def test_a_list_of_nodes_expands_to_what_it_was_made_of(lists):
    """Ranges, single numbers and leading zeros, in the order of the list."""
    texts, expected = [], []
    for name, ranges in lists:
        inside = []
        for first, more, width in ranges:
            start = f"{first:0{width}d}"
            last = f"-{first + more:0{width}d}" if more else ""
            inside.append(f"{start}{last}")
            expected += [
                f"{name}{number:0{len(start)}d}"
                for number in range(first, first + more + 1)
            ]
        texts.append(f"{name}[{','.join(inside)}]")

    found = environment.detect(
        step(
            SLURM_STEP_NODELIST=",".join(texts),
            SLURM_STEP_TASKS_PER_NODE=f"1(x{len(expected)})",
            SLURM_PROCID="0",
            SLURM_LOCALID=None,
        )
    )
    addresses = found.addresses()["worker"]
    assert expected == [address.partition(":")[0] for address in addresses]


@pytest.mark.parametrize("name", ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"])
@given(st.text(max_size=40) | st.from_regex(r"n\[[0-9,-]{0,30}\]", fullmatch=True))
@example("9" * 5000)
@example(f"n[{'9' * 5000}]")
@example("n[0-999999999]")
@example("1(x999999999)")
def test_any_text_is_a_list_or_an_error_of_ours(name, text):
    """Hostile variables end in an error, not in a crash or a full memory."""
    with contextlib.suppress(ClusterConfigError):
        assert read(**{name: text, "SLURM_NODEID": None}).num_workers <= 4


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.none() | st.integers(1, 4),
)
def test_every_task_has_a_place_of_its_own(counts, block_size):
    """Nodes have as many addresses as tasks, however tasks are dealt to them."""
    dealt = {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": str(block_size)}
    config = read(
        SLURM_STEP_NODELIST=f"n[0-{len(counts) - 1}]",
        SLURM_STEP_TASKS_PER_NODE=",".join(map(str, counts)),
        SLURM_PROCID="0",
        SLURM_LOCALID=None,
        **(dealt if block_size else {}),
    )
    hosts, _ = parts(config)

    assert sum(counts) == len(set(config.addresses["worker"]))
    assert {f"n{i}": n for i, n in enumerate(counts)} == collections.Counter(hosts)
    blocks = [len(list(block)) for _, block in itertools.groupby(hosts)]
    assert block_size is None or len(counts) == 1 or max(blocks[:-1]) <= block_size


def ports_of(job, number, num_tasks):
    config = read(
        SLURM_JOB_ID=str(job),
        SLURM_STEP_ID=str(number),
        SLURM_STEP_NODELIST="n0",
        SLURM_STEP_TASKS_PER_NODE=str(num_tasks),
        SLURM_PROCID="0",
        SLURM_LOCALID=None,
    )
    return parts(config)[1]


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(1, 64))
def test_derived_ports_are_below_those_of_outgoing_connections(job, number, num_ports):
    ports = ports_of(job, number, num_ports)

    assert num_ports == len(set(ports))
    assert 20_000 <= min(ports) <= max(ports) < 32_768


def test_neighbouring_steps_and_jobs_have_other_ports():
    """Trials that run beside each other on one node do not meet."""
    keys = itertools.product(range(1000, 1010), range(12))
    used = [port for key in keys for port in ports_of(*key, num_tasks=4)]

    assert len(used) == len(set(used))
