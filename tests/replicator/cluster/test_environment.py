"""Cluster environments: what TF_CONFIG and launchers say, and mistakes in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator import errors
from replicator.cluster import address_exchange, environment
from replicator.cluster.address_exchange import Registration

WORKERS = ["localhost:2301", "localhost:2302"]


def tf_config(addresses, kind="worker", index=0, **more):
    config = {"cluster": addresses, "task": {"type": kind, "index": index}, **more}
    return {"TF_CONFIG": json.dumps(config)}


def read(environ):
    return environment.detect(environ).config()


def test_workers_are_numbered_in_order():
    """A worker knows its id, its address and whether it is the chief."""
    environ = tf_config({"worker": WORKERS, "ps": ["localhost:1"]}, index=1)
    config = read(environ)

    assert (2, 1, False) == (config.num_workers, config.worker_id, config.is_chief)
    assert "localhost:2302" == config.address
    assert "worker 0 (localhost:2301)" == config.name_of(0)


def test_a_chief_is_worker_0():
    """As in TensorFlow, a chief trains too, before the workers."""
    addresses = {"chief": ["localhost:2300"], "worker": WORKERS}
    chief = read(tf_config(addresses, "chief"))
    worker = read(tf_config(addresses, "worker", 1))

    assert (3, 0, True) == (chief.num_workers, chief.worker_id, chief.is_chief)
    assert (3, 2, False) == (worker.num_workers, worker.worker_id, worker.is_chief)
    assert "localhost:2300" == worker.address_of(0)


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
    with pytest.raises(errors.ClusterConfigError, match=message):
        getattr(config, use)


POD = {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "study-worker-0-1",
    "REPLICATOR_NUM_WORKERS": "3",
    "REPLICATOR_SERVICE": "study",
}
PLAIN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3512795137",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
ROLES = {"REPLICATOR_ROLES": "chief:1,worker:1,ps:1"}


def test_a_pod_knows_the_names_of_all_pods():
    """They follow from its own host name, and the service gives them addresses."""
    config = read(POD)

    assert (1, 3, False) == (config.worker_id, config.num_workers, config.is_chief)
    assert {
        "worker": tuple(f"study-worker-0-{index}.study:2222" for index in range(3))
    } == config.addresses
    assert (0, 1) == (config.local_worker_id, config.num_workers_on_host)


@given(
    name=st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    num_workers=st.integers(1, 200),
    data=st.data(),
)
def test_the_pods_of_a_job_agree(name, num_workers, data):
    """Whatever the job is called: all have the same addresses, each its own index."""
    one = st.integers(0, num_workers - 1)
    indices = data.draw(st.lists(one, min_size=1, max_size=3))
    configs = [
        read(
            {
                "JOB_COMPLETION_INDEX": str(index),
                "HOSTNAME": f"{name}-{index}",
                "REPLICATOR_NUM_WORKERS": str(num_workers),
                "REPLICATOR_SERVICE": name,
                "REPLICATOR_PORT": "1234",
            }
        )
        for index in indices
    ]

    assert indices == [config.worker_id for config in configs]
    assert 1 == len({config.addresses["worker"] for config in configs})
    assert num_workers == configs[0].num_workers


@pytest.mark.parametrize(
    ("environ", "family", "rank", "local_rank"),
    [
        (PLAIN, "ranks", 2, None),
        (PLAIN | {"LOCAL_RANK": "0"}, "ranks", 2, 0),
        (MPI, "OpenMPI", 3, 1),
        (
            PLAIN | HYDRA | {"RANK": "", "WORLD_SIZE": ""},
            "Hydra",
            1,
            0,
        ),
        # mpirun in a container of a Job: its processes are the ones that train.
        (MPI | POD, "OpenMPI", 3, 1),
        # What a user sets comes first.
        (MPI | PLAIN, "ranks", 2, None),
    ],
)
def test_a_launcher_is_recognized(environ, family, rank, local_rank):
    """By its variables, without a connection to anybody."""
    found = environment.detect(environ)

    assert family == found.family
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
]


@pytest.mark.parametrize(("environ", "message"), MISTAKES)
def test_a_mistake_is_explained_in_one_line(environ, message):
    with pytest.raises(errors.ClusterConfigError, match=message) as found:
        read(environ)

    assert "\n" not in str(found.value)


# Any text that an environment variable can hold.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(
    names=st.sets(
        st.sampled_from(sorted({*POD, *PLAIN, *MPI, *MPIRUN, *HYDRA, "LOCAL_RANK"}))
    ),
    data=st.data(),
)
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
        if found.family == "Kubernetes":
            found.config()
    except errors.ClusterConfigError as error:
        kind, message = "worker", str(error)

    assert "worker" == kind
    assert len(message.splitlines()) <= 1


def test_an_engine_that_numbers_processes_can_have_servers():
    """``REPLICATOR_ROLES`` says which of them are parameter servers."""
    config = read(POD | ROLES)

    assert ("worker", 0) == (config.kind, config.index)
    assert ("study-worker-0-2.study:2222",) == config.addresses["ps"]
    assert ("ps", 0) == environment.detect(PLAIN | ROLES | {"WORLD_SIZE": "3"}).own


def test_ray_says_who_shares_a_machine():
    """The local rank follows from Ray's machines; IPv6 addresses have brackets."""
    members = [
        environment.RayMember(node_id=node, host="fd00::1", port=port)
        for node, port in (("a", 1), ("b", 2), ("a", 3), ("b", 4))
    ]
    configs = [environment.of_ray(members, rank).config() for rank in range(4)]

    assert [0, 1, 2, 3] == [config.worker_id for config in configs]
    assert [0, 0, 1, 1] == [config.local_worker_id for config in configs]
    assert "[fd00::1]:2" == configs[1].address


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
    members = [
        environment.RayMember(node_id="a", host=host, port=1) for host in ("a", "b")
    ]
    config = environment.of_ray(members, 1).config()

    assert (1, 2) == (config.local_worker_id, config.num_workers_on_host)


@given(
    num_hosts=st.integers(1, 4),
    num_each=st.integers(1, 4),
    chief_name_is_loopback=st.booleans(),
)
def test_processes_of_a_host_get_the_same_host(
    num_hosts, num_each, chief_name_is_loopback
):
    """However those beside the chief reach it, so that local ranks are right."""
    registered = {}
    for rank in range(1, num_hosts * num_each):
        host = rank // num_each
        beside = host == 0 and chief_name_is_loopback
        registered[rank] = Registration(
            host="127.0.0.1" if beside else f"10.0.0.{host}",
            port=1000 + rank,
            chief_host="127.0.1.1" if beside else "10.0.0.0",
        )
    addresses = address_exchange.addresses_of(registered, 999)
    hosts = [address.rpartition(":")[0] for address in addresses]

    assert num_hosts * num_each == len(set(addresses))
    assert num_hosts == len(set(hosts))
    if num_hosts > 1:
        assert not any(host.startswith("127.") for host in hosts)
