"""Cluster environments: what TF_CONFIG and launchers say, and mistakes in them."""

import collections
import contextlib
import dataclasses
import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import replicator
from replicator.cluster import environment

WORKERS = ["localhost:2301", "localhost:2302"]


def tf_config(addresses, kind="worker", index=0, **more):
    config = {"cluster": addresses, "task": {"type": kind, "index": index}, **more}
    return {"TF_CONFIG": json.dumps(config)}


def step(**changes):
    """The variables of task 1 of a step of Slurm; None leaves one out."""
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


def read(environ):
    return environment.detect(environ).config()


def first_task(**changes):
    """The cluster of a step, as its first task sees it."""
    return read(step(SLURM_PROCID="0", SLURM_LOCALID=None, **changes))


def parts(config):
    """Hosts and ports of all workers."""
    pairs = [address.rpartition(":") for address in config.addresses["worker"]]
    return [host for host, _, _ in pairs], [int(port) for _, _, port in pairs]


def test_workers_are_numbered_in_order_after_a_chief():
    """As in TensorFlow, a chief trains too; servers do not."""
    plain = {"worker": WORKERS, "ps": ["localhost:1"]}
    led = {"chief": ["localhost:2300"], **plain}
    found = [
        read(tf_config(plain, "worker", 1)),
        read(tf_config(led, "chief", 0)),
        read(tf_config(led, "worker", 1)),
    ]

    assert [(2, 1, False), (3, 0, True), (3, 2, False)] == [
        (config.num_workers, config.worker_id, config.is_chief) for config in found
    ]
    assert [WORKERS[1], "localhost:2300", WORKERS[1]] == [c.address for c in found]
    assert "worker 0 (localhost:2301)" == found[0].name_of(0)
    assert "localhost:2300" == found[2].address_of(0)


@pytest.mark.parametrize(
    ("kind", "others", "use", "message"),
    [
        ("ps", {"ps": ["localhost:1"]}, "worker_id", r"ps:0, not a worker"),
        (
            "evaluator",
            {},
            "worker_id",
            r"evaluator:0, not a worker; .* restores the checkpoints .*'in_graph'",
        ),
        ("evaluator", {"evaluator": ["localhost:9"]}, "worker_id", r"not a worker"),
        ("evaluator", {}, "address", r"evaluator:0, which the cluster does not li"),
    ],
)
def test_servers_and_evaluators_are_no_workers(kind, others, use, message):
    """A TFJob does not list an evaluator; whoever does may."""
    config = read(tf_config({"worker": WORKERS, **others}, kind))

    assert (kind, 0, 2) == (config.kind, config.index, config.num_workers)
    with pytest.raises(replicator.ClusterConfigError, match=message):
        getattr(config, use)


POD = {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "study-worker-0-1",
    "REPLICATOR_NUM_WORKERS": "3",
    "REPLICATOR_SERVICE": "study",
}
CHIEF = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
PLAIN = {"RANK": "2", "WORLD_SIZE": "4", **CHIEF}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    **CHIEF,
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3512795137",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
PMIX = {"PMIX_RANK": "0", "PMI_RANK": "0", "PMI_SIZE": "2"}
ROLES = {"REPLICATOR_ROLES": "chief:1,worker:1,ps:1"}


@pytest.mark.parametrize("port", [None, "1234"])
def test_a_pod_knows_the_names_of_all_pods(port):
    """They follow from its own host name, and the service gives them addresses."""
    config = read(POD | ({"REPLICATOR_PORT": port} if port else {}))

    assert (1, 3, False) == (config.worker_id, config.num_workers, config.is_chief)
    assert {
        "worker": tuple(f"study-worker-0-{i}.study:{port or 2222}" for i in range(3))
    } == config.addresses
    assert (0, 1) == (config.local_worker_id, config.num_workers_on_host)


def test_a_step_is_a_cluster_of_workers():
    """Two addresses on each node; the first task is the chief; GPUs are not needed.

    The third of four tasks is the first on its node, whose first GPU is its own.
    """
    config = read(step())
    third = read(step(SLURM_PROCID="2", SLURM_NODEID="1", SLURM_LOCALID="0"))

    assert ("worker", 1) == (config.kind, config.index)
    assert ["n0", "n0", "n1", "n1"] == parts(config)[0]
    assert 1 == config.local_index
    assert not config.is_chief
    assert (2, 0) == (third.worker_id, third.local_index)


@pytest.mark.parametrize(
    ("environ", "rank", "local_rank"),
    [
        (PLAIN, 2, None),
        (PLAIN | {"LOCAL_RANK": "0"}, 2, 0),
        (MPI, 3, 1),
        (PLAIN | HYDRA | {"RANK": "", "WORLD_SIZE": ""}, 1, 0),
        # mpirun in a container of a Job: its processes are the ones that train.
        (MPI | POD, 3, 1),
        # What a user sets comes first.
        (MPI | PLAIN, 2, None),
        (step() | tf_config({"worker": ["a:1"]}), 0, None),
        # Slurm says where the others are, PMIx does not.
        (step(**PMIX), 1, None),
        # mpirun inside of the allocation: the step is one of its helpers.
        (step(**PMIX, **MPI), 3, 1),
    ],
)
def test_a_launcher_is_recognized(environ, rank, local_rank):
    """By its variables, without a connection to anybody."""
    found = environment.detect(environ)

    assert ("worker", rank) == found.own
    assert local_rank == found.local_rank


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ({}, "127.0.0.1"),
        ({"PMIX_NAMESPACE": "prterun-node7-4711@1"}, "127.0.0.1"),
        ({"MASTER_ADDR": "10.0.0.9"}, "10.0.0.9"),
    ],
)
def test_on_one_host_mpirun_says_where_rank_0_is(given, host):
    """The port is one, the same in every rank; what is set by hand counts."""
    environ = MPIRUN | given
    ranks = environment.detect(environ).ranks

    assert (host, 1) == (ranks.chief_host, ranks.rank)
    assert 20_000 <= ranks.chief_port < 32_000
    first = environment.detect(environ | {"OMPI_COMM_WORLD_RANK": "0"}).ranks
    assert ranks.chief == first.chief
    by_hand = environment.detect(environ | {"MASTER_PORT": "4711"}).ranks
    assert (host, 4711) == (by_hand.chief_host, by_hand.chief_port)


def test_two_jobs_of_mpirun_meet_at_different_ports():
    """They may be on one host."""
    names = [{"PMIX_NAMESPACE": str(3512795137 + job)} for job in range(20)]
    ports = {environment.detect(MPIRUN | name).ranks.chief_port for name in names}

    assert len(ports) > 15


SPARSE = {"sparseCluster": {"worker": {"1": "a:1"}, "ps": []}}
NO_ADDRESS = r"^MASTER_ADDR is not set.*MASTER_PORT in every process.*"
MISTAKES = [
    ({}, r"TF_CONFIG is not set.*set it in every process, for example"),
    ({}, r"no launcher has numbered this process.*docs/clusters\.md"),
    ({"TF_CONFIG": "{"}, r"TF_CONFIG is not JSON \(.*\): '\{'; write it like"),
    ({"TF_CONFIG": "[1]"}, r"must be a JSON object, but is '\[1\]'"),
    ({"TF_CONFIG": "{}"}, r"TF_CONFIG has no 'cluster' object: '\{\}'"),
    (tf_config({}), r"TF_CONFIG has no 'cluster' object"),
    (tf_config({"worker": WORKERS}, task=None), r"TF_CONFIG has no 'task' object"),
    (
        tf_config({"worker": WORKERS}, task={"index": 1}),
        r"TF_CONFIG\['task'\] has no 'type': \{'index': 1\}",
    ),
    (tf_config({"worker": "localhost:1"}), r"'worker' must be a list of addresses"),
    (tf_config({"worker": []}), r"'worker' must be a list of addresses, but is \[\]"),
    (tf_config({"tower": WORKERS}), r"unknown kind 'tower'; kinds are 'chief'"),
    (tf_config({"chief": WORKERS}, "chief"), r"has 2 chiefs, but at most one"),
    (tf_config({"ps": WORKERS}, "ps"), r"has no 'worker': \{'ps'"),
    (tf_config({"worker": ["localhost"]}), r"address 'localhost' is not of the form"),
    (tf_config({"worker": ["a:99999"]}), r"'a:99999' .* port from 1 to 65535"),
    (tf_config({"worker": ["a:b"]}), r"address 'a:b' is not of the form"),
    (tf_config({"worker": [7]}), r"address 7 is not of the form 'name:port'"),
    (tf_config({"worker": ["a:1", "a:1"]}), r"address 'a:1' is listed twice"),
    (tf_config({"worker": WORKERS}, "ps"), r"of kind 'ps', but the cluster lists"),
    (tf_config({"worker": WORKERS}, index=2), r"index 2 .* 2 of kind 'worker'.*0 to 1"),
    (tf_config({"worker": WORKERS}, index=-1), r"index -1 .* out of range"),
    (tf_config({"worker": WORKERS}, "evaluator", -1), r"of kind 'evaluator', but"),
    (
        {"TF_CONFIG": json.dumps(SPARSE | {"task": {"type": "worker", "index": 1}})},
        r"'sparseCluster', but workers .* need the addr.*enableDynamicWorker: f",
    ),
    (tf_config({"worker": WORKERS}, index="x"), r"index 'x' .* is not an integer"),
    (tf_config({"worker": WORKERS}, index=1.5), r"index 1.5 .* is not an integer"),
    (
        POD | {"REPLICATOR_NUM_WORKERS": ""},
        r"REPLICATOR_NUM_WORKERS is not set.*launch render --launcher jobset",
    ),
    (
        POD | {"REPLICATOR_NUM_WORKERS": "x"},
        r"REPLICATOR_NUM_WORKERS='x' is not an integer from 1 to 65536",
    ),
    (POD | {"JOB_COMPLETION_INDEX": "3"}, r"INDEX='3' is not an integer from 0 to 2"),
    (POD | {"JOB_COMPLETION_INDEX": "-1"}, r"INDEX='-1' is not an integer from 0 to 2"),
    (POD | {"REPLICATOR_SERVICE": ""}, r"REPLICATOR_SERVICE is not set"),
    (
        POD | {"REPLICATOR_SERVICE": "a_b"},
        r"REPLICATOR_SERVICE='a_b' is not a name in DNS; .* headless service",
    ),
    (POD | {"REPLICATOR_PORT": "0"}, r"REPLICATOR_PORT='0' .* from 1 to 65535"),
    (POD | {"HOSTNAME": ""}, r"HOSTNAME is not set"),
    (
        POD | {"HOSTNAME": "study-worker-0-2"},
        r"HOSTNAME='study-worker-0-2' does not end in '-1'.*completionMode",
    ),
    (POD | {"HOSTNAME": "1"}, r"HOSTNAME='1' does not end in '-1'"),
    (PLAIN | {"RANK": "4"}, r"RANK='4' is not an integer from 0 to 3; set RANK,"),
    (PLAIN | {"RANK": "²"}, r"RANK='²' is not an integer from 0 to 3"),
    (PLAIN | {"WORLD_SIZE": "0"}, r"WORLD_SIZE='0' is not an integer from 1 to"),
    (PLAIN | {"WORLD_SIZE": "9" * 5000}, r"WORLD_SIZE='9+' is not an integer"),
    (PLAIN | {"LOCAL_RANK": "3"}, r"LOCAL_RANK='3' is not an integer from 0 to 2"),
    (PLAIN | {"MASTER_ADDR": ""}, r"MASTER_ADDR is not set.*the host and a free"),
    (PLAIN | {"MASTER_PORT": ""}, r"MASTER_PORT is not set.*port of rank 0"),
    (PLAIN | {"MASTER_PORT": "http"}, r"MASTER_PORT='http' .* from 1 to 65535"),
    (
        MPI | {"OMPI_COMM_WORLD_RANK": "x"},
        r"OMPI_COMM_WORLD_RANK='x' .*mpirun of OpenMPI sets it",
    ),
    (HYDRA | {"PMI_RANK": "2"}, r"PMI_RANK='2' .*mpiexec of MPICH sets it"),
    # On several hosts, the address of rank 0 is asked for.
    (
        MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        NO_ADDRESS + "mpirun -x MASTER_ADDR=HOST",
    ),
    (MPIRUN | {"PMIX_NAMESPACE": ""}, NO_ADDRESS + "mpirun -x MASTER_ADDR=HOST"),
    (HYDRA, NO_ADDRESS + "mpiexec -genv MASTER_ADDR HOST"),
    # Its variables do not say how many processes there are.
    (
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "prte-node1-4711@1"},
        r"or RANK, WORLD_SIZE, MASTER_ADDR and MASTER",
    ),
    (
        step(SLURM_STEP_NODELIST="n[0-"),
        r"'n\[0-' is not a list of Slurm: .*writes for example 'n\[0-1,5\]",
    ),
    (step(SLURM_STEP_NODELIST="n[5-1]"), r"'5-1' is wrong"),
    (
        step(SLURM_STEP_TASKS_PER_NODE="2(y2)"),
        r"'2\(y2\)' is not a list of tasks per node.*'2\(x2\),1'",
    ),
    (
        step(SLURM_STEP_TASKS_PER_NODE="4"),
        r"counts the tasks of 1 nodes, but SLURM_STEP_NODELIST='n\[0-1\]' has 2",
    ),
    (
        step(SLURM_STEP_TASKS_PER_NODE=None),
        r"is not set, so .* does not know .* with srun",
    ),
    (step(SLURM_PROCID="4"), r"SLURM_PROCID=4 is out of range: .*makes 4 tasks"),
    (step(SLURM_PROCID="x"), r"SLURM_PROCID='x' is not an integer from 0"),
    (
        step(SLURM_NODEID="1", SLURM_LOCALID="0"),
        r"is task 0 of node 1, not task 1 of node 0.*--distribution=block",
    ),
    (
        step(SLURM_STEP_RESV_PORTS="12000"),
        r"has 1 ports, but a node has 2 tasks; reserve srun --resv-ports=2",
    ),
    (
        step(REPLICATOR_ROLES="worker:2"),
        r"counts 2 processes, but the job has 4 tasks",
    ),
    (step(REPLICATOR_ROLES="boss:4"), r"'boss:4' is wrong; kinds are chief, worker"),
    (step(REPLICATOR_ROLES="worker:2,worker:2"), r"each once"),
    # A batch script has the variables of the job only; srun starts the processes.
    (step(SLURM_STEP_NODELIST=None), r"TF_CONFIG is not set"),
]


@pytest.mark.parametrize(("environ", "message"), MISTAKES)
def test_a_mistake_is_explained_in_one_line(environ, message):
    with pytest.raises(replicator.ClusterConfigError, match=message) as found:
        read(environ)

    assert "\n" not in str(found.value)


# Any text that an environment variable can hold.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = sorted({*POD, *PLAIN, *MPI, *MPIRUN, *HYDRA, "LOCAL_RANK"})


@given(names=st.sets(st.sampled_from(NAMES)), data=st.data())
def test_any_variables_give_an_environment_or_one_line(names, data):
    """Never another exception, whatever somebody has put into them."""
    environ = {
        name: data.draw(st.one_of(TEXTS, st.integers(-2, 70_000).map(str)))
        for name in names
    }
    message = ""
    try:
        found = environment.detect(environ)
        kind = found.own[0]
        if found.known is not None:
            found.config()
    except replicator.ClusterConfigError as error:
        kind, message = "worker", str(error)

    assert "worker" == kind
    assert len(message.splitlines()) <= 1


@pytest.mark.parametrize("name", ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"])
@given(st.text(max_size=40) | st.from_regex(r"n\[[0-9,-]{0,30}\]", fullmatch=True))
@example("9" * 5000)
@example(f"n[{'9' * 5000}]")
@example("n[0-999999999]")
@example("1(x999999999)")
def test_any_text_is_a_list_or_an_error_of_ours(name, text):
    """Hostile variables end in an error, not in a crash or a full memory."""
    with contextlib.suppress(replicator.ClusterConfigError):
        assert read(step(**{name: text, "SLURM_NODEID": None})).num_workers <= 4


def test_an_engine_that_numbers_processes_can_have_servers():
    """``REPLICATOR_ROLES`` says which of them are parameter servers."""
    pod = read(POD | ROLES)
    task = read(step(REPLICATOR_ROLES="chief:1,worker:2,ps:1"))

    assert ("worker", 0) == (pod.kind, pod.index) == (task.kind, task.index)
    assert ("study-worker-0-2.study:2222",) == pod.addresses["ps"]
    assert ("ps", 0) == environment.detect(PLAIN | ROLES | {"WORLD_SIZE": "3"}).own
    assert {"chief": 1, "worker": 2, "ps": 1} == {
        kind: len(of_kind) for kind, of_kind in task.addresses.items()
    }
    assert "n1" == task.addresses["ps"][0].split(":")[0]


def test_roles_are_written_as_they_are_read():
    """What a harness starts in the order of ranks, an engine numbers."""
    members = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    text = environment.roles_text(members)

    assert "chief:1,worker:2,ps:1" == text
    assert members == environment.members_of({environment.ROLES: text}, len(members))


@given(
    hosts=st.lists(st.sampled_from(["a", "b", "10.0.0.1"]), min_size=2, max_size=12),
    has_chief=st.booleans(),
)
def test_local_ranks_number_the_workers_of_each_host(hosts, has_chief):
    """From 0, without gaps, in the order of the workers; a chief needs GPUs too."""
    addresses = [f"{host}:{1000 + index}" for index, host in enumerate(hosts)]
    chief, workers = addresses[:has_chief], addresses[has_chief:]
    kinds = {kind: of for kind, of in (("chief", chief), ("worker", workers)) if of}
    own = [("chief", index) for index in range(len(chief))]
    own += [("worker", index) for index in range(len(workers))]
    configs = [read(tf_config(kinds, *each)) for each in own]

    for host in set(hosts):
        here = [c for c, of in zip(configs, hosts, strict=True) if of == host]
        assert list(range(len(here))) == [config.local_worker_id for config in here]
        assert {len(here)} == {config.num_workers_on_host for config in here}


def test_the_launcher_knows_the_local_rank_better():
    """Two containers of one machine have addresses of their own, and share its GPUs."""
    config = read(tf_config({"worker": ["a:1", "b:1"]}, index=1))
    config = dataclasses.replace(config, local_rank=1)

    assert (1, 2) == (config.local_worker_id, config.num_workers_on_host)


def test_a_program_of_its_own_forgets_the_job():
    variables = step(HOME="/root", TF_CONFIG="{}")
    environment.forget(variables)

    assert {"HOME": "/root"} == variables


LISTS = st.tuples(
    st.from_regex(r"[a-z][a-z0-9-]{0,5}[a-z-]", fullmatch=True),
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(1, 4)),
        min_size=1,
        max_size=4,
    ),
)


@given(st.lists(LISTS, min_size=1, max_size=4))
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

    variables = step(
        SLURM_STEP_NODELIST=",".join(texts),
        SLURM_STEP_TASKS_PER_NODE=f"1(x{len(expected)})",
        SLURM_PROCID="0",
        SLURM_LOCALID=None,
    )
    addresses = environment.detect(variables).known["worker"]
    assert expected == [address.partition(":")[0] for address in addresses]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.none() | st.integers(1, 4),
)
def test_every_task_has_a_place_of_its_own(counts, block_size):
    """Nodes have as many addresses as tasks, however tasks are dealt to them."""
    dealt = {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": str(block_size)}
    config = first_task(
        SLURM_STEP_NODELIST=f"n[0-{len(counts) - 1}]",
        SLURM_STEP_TASKS_PER_NODE=",".join(map(str, counts)),
        **(dealt if block_size else {}),
    )
    hosts, _ = parts(config)

    assert sum(counts) == len(set(config.addresses["worker"]))
    assert {f"n{i}": n for i, n in enumerate(counts)} == collections.Counter(hosts)
    blocks = [len(list(block)) for _, block in itertools.groupby(hosts)]
    assert block_size is None or len(counts) == 1 or max(blocks[:-1]) <= block_size


def ports_of(job, number, num_tasks):
    config = first_task(
        SLURM_JOB_ID=str(job),
        SLURM_STEP_ID=str(number),
        SLURM_STEP_NODELIST="n0",
        SLURM_STEP_TASKS_PER_NODE=str(num_tasks),
    )
    return parts(config)[1]


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(1, 64))
def test_derived_ports_are_below_those_of_outgoing_connections(job, number, num_ports):
    ports = ports_of(job, number, num_ports)

    assert num_ports == len(set(ports))
    assert 20_000 <= min(ports) <= max(ports) < 32_768


def test_ports_are_not_those_of_other_steps():
    """Trials that run beside each other on one node; Slurm can reserve ports."""
    keys = itertools.product(range(1000, 1010), range(12))
    used = [port for key in keys for port in ports_of(*key, num_tasks=4)]
    reserved = parts(read(step(SLURM_STEP_RESV_PORTS="12000-12001")))

    assert len(used) == len(set(used))
    assert (["n0", "n0", "n1", "n1"], [12000, 12001] * 2) == reserved
