"""Environments of launchers: what their variables say, and mistakes in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator import errors
from replicator.cluster import environment
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.environment import address_exchange
from replicator.cluster.environment.address_exchange import Registration

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
# Any text that an environment variable can hold.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def test_a_pod_knows_the_names_of_all_pods():
    """They follow from its own host name, and the service gives them addresses."""
    config = environment.detect(POD).config()

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
    indices = data.draw(
        st.lists(st.integers(0, num_workers - 1), min_size=1, max_size=3)
    )
    configs = [
        environment.detect(
            {
                "JOB_COMPLETION_INDEX": str(index),
                "HOSTNAME": f"{name}-{index}",
                "REPLICATOR_NUM_WORKERS": str(num_workers),
                "REPLICATOR_SERVICE": name,
                "REPLICATOR_PORT": "1234",
            }
        ).config()
        for index in indices
    ]

    assert indices == [config.worker_id for config in configs]
    assert 1 == len({config.addresses["worker"] for config in configs})
    assert num_workers == configs[0].num_workers


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"REPLICATOR_NUM_WORKERS": ""},
            r"REPLICATOR_NUM_WORKERS is not set.*launch render --launcher jobset",
        ),
        (
            {"REPLICATOR_NUM_WORKERS": "x"},
            r"REPLICATOR_NUM_WORKERS='x' is not an integer from 1 to 65536",
        ),
        (
            {"JOB_COMPLETION_INDEX": "3"},
            r"JOB_COMPLETION_INDEX='3' is not an integer from 0 to 2",
        ),
        (
            {"JOB_COMPLETION_INDEX": "-1"},
            r"JOB_COMPLETION_INDEX='-1' is not an integer from 0 to 2",
        ),
        ({"REPLICATOR_SERVICE": ""}, r"REPLICATOR_SERVICE is not set"),
        (
            {"REPLICATOR_SERVICE": "a_b"},
            r"REPLICATOR_SERVICE='a_b' is not a name in DNS; .* headless service",
        ),
        ({"REPLICATOR_PORT": "0"}, r"REPLICATOR_PORT='0' .* from 1 to 65535"),
        ({"HOSTNAME": ""}, r"HOSTNAME is not set"),
        (
            {"HOSTNAME": "study-worker-0-2"},
            r"HOSTNAME='study-worker-0-2' does not end in '-1'.*completionMode",
        ),
        ({"HOSTNAME": "1"}, r"HOSTNAME='1' does not end in '-1'"),
    ],
)
def test_a_mistake_in_a_manifest_is_explained(changed, message):
    with pytest.raises(errors.ClusterConfigError, match=message) as found:
        environment.detect(POD | changed).config()

    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("environ", "kind", "rank", "local_rank"),
    [
        (PLAIN, environment.PlainRankEnvironment, 2, None),
        (PLAIN | {"LOCAL_RANK": "0"}, environment.PlainRankEnvironment, 2, 0),
        (MPI, environment.OpenMpiEnvironment, 3, 1),
        (
            {
                **PLAIN,
                "RANK": "",
                "WORLD_SIZE": "",
                "PMI_RANK": "1",
                "PMI_SIZE": "2",
                "MPI_LOCALRANKID": "0",
            },
            environment.HydraEnvironment,
            1,
            0,
        ),
        # mpirun in a container of a Job: its processes are the ones that train.
        (MPI | POD, environment.OpenMpiEnvironment, 3, 1),
        # What a user sets comes first.
        (MPI | PLAIN, environment.PlainRankEnvironment, 2, None),
    ],
)
def test_a_launcher_is_recognized(environ, kind, rank, local_rank):
    """By its variables, without a connection to anybody."""
    found = environment.detect(environ)

    assert kind is type(found)
    assert ("worker", rank) == found.own()
    assert local_rank == found.local_rank


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3512795137",
}


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
    ports = {
        environment.detect(
            MPIRUN | {"PMIX_NAMESPACE": str(3512795137 + job)}
        ).ranks.chief_port
        for job in range(20)
    }

    assert len(ports) > 15


@pytest.mark.parametrize(
    ("environ", "example"),
    [
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun -x MASTER_ADDR=HOST"),
        (MPIRUN | {"PMIX_NAMESPACE": ""}, "mpirun -x MASTER_ADDR=HOST"),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"},
            "mpiexec -genv MASTER_ADDR HOST",
        ),
    ],
)
def test_on_several_hosts_the_address_is_asked_for(environ, example):
    with pytest.raises(
        errors.ClusterConfigError,
        match=rf"^MASTER_ADDR is not set.*MASTER_PORT in every process.*{example}.*$",
    ):
        environment.detect(environ)


def test_a_launcher_of_pmix_alone_is_told_what_to_set():
    """Its variables do not say how many processes there are."""
    with pytest.raises(
        errors.ClusterConfigError, match=r"or RANK, WORLD_SIZE, MASTER_ADDR and MASTER"
    ):
        environment.detect({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prte-node1-4711@1"})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
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
        (
            {"PMI_RANK": "2", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"},
            r"PMI_RANK='2' .*mpiexec of MPICH sets it",
        ),
    ],
)
def test_a_mistake_in_ranks_is_explained(environ, message):
    with pytest.raises(errors.ClusterConfigError, match=message) as found:
        environment.detect(environ)

    assert "\n" not in str(found.value)


@given(
    names=st.sets(
        st.sampled_from(
            sorted({*POD, *PLAIN, *MPI, *MPIRUN, "PMI_RANK", "PMI_SIZE", "LOCAL_RANK"})
        )
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
        kind = found.own()[0]
        if isinstance(found, environment.KubernetesEnvironment):
            found.config()
    except errors.ClusterConfigError as error:
        kind, message = "worker", str(error)

    assert "worker" == kind
    assert len(message.splitlines()) <= 1


def test_an_engine_that_numbers_processes_can_have_servers():
    """``REPLICATOR_ROLES`` says which of them are parameter servers."""
    roles = {"REPLICATOR_ROLES": "chief:1,worker:1,ps:1"}
    config = environment.detect(POD | roles).config()

    assert ("worker", 0) == (config.kind, config.index)
    assert ("study-worker-0-2.study:2222",) == config.addresses["ps"]
    assert ("ps", 0) == environment.detect(PLAIN | roles | {"WORLD_SIZE": "3"}).own()


def test_a_step_of_slurm_that_speaks_pmix_is_one_of_slurm():
    """Slurm says where the others are, PMIx does not."""
    step = {
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "PMIX_RANK": "1",
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
    }

    assert isinstance(environment.detect(step), environment.SlurmEnvironment)
    # mpirun of OpenMPI inside of the allocation: the step is one of its helpers.
    assert isinstance(environment.detect(step | MPI), environment.OpenMpiEnvironment)


def test_nobody_says_what_the_cluster_is():
    with pytest.raises(
        errors.ClusterConfigError,
        match=r"no launcher has numbered this process.*docs/clusters\.md",
    ):
        environment.detect({})


def test_ray_says_who_shares_a_machine():
    """The local rank follows from Ray's machines, not from the addresses."""
    members = [
        environment.RayMember(node_id=node, host="10.0.0.1", port=port)
        for node, port in (("a", 1), ("b", 2), ("a", 3), ("b", 4))
    ]
    configs = [environment.RayEnvironment(members, rank).config() for rank in range(4)]

    assert [0, 1, 2, 3] == [config.worker_id for config in configs]
    assert [0, 0, 1, 1] == [config.local_worker_id for config in configs]


def test_ray_on_ipv6_has_brackets():
    """Otherwise the port would be read as part of the address."""
    member = environment.RayMember(node_id="a", host="fd00::1", port=7)

    assert "[fd00::1]:7" == environment.RayEnvironment([member], 0).config().address


@given(hosts=st.lists(st.sampled_from(["a", "b", "10.0.0.1"]), min_size=1, max_size=12))
def test_local_ranks_number_the_workers_of_each_host(hosts):
    """From 0, without gaps, in the order of the workers; all agree on how many."""
    addresses = {"worker": tuple(f"{h}:{1000 + i}" for i, h in enumerate(hosts))}
    configs = [
        ClusterConfig(addresses=addresses, kind="worker", index=index)
        for index in range(len(hosts))
    ]

    for host in set(hosts):
        here = [c for c, of in zip(configs, hosts, strict=True) if of == host]
        assert list(range(len(here))) == [config.local_worker_id for config in here]
        assert {len(here)} == {config.num_workers_on_host for config in here}


def test_a_chief_has_its_place_on_a_host():
    """It trains too, so it needs GPUs as the workers do."""
    addresses = {"chief": ("a:1",), "worker": ("a:2", "b:1")}
    first = ClusterConfig(addresses=addresses, kind="chief", index=0)
    second = ClusterConfig(addresses=addresses, kind="worker", index=0)

    assert [(0, 2), (1, 2)] == [
        (config.local_worker_id, config.num_workers_on_host)
        for config in (first, second)
    ]


def test_the_launcher_knows_the_local_rank_better():
    """Two containers of one machine have addresses of their own, and share its GPUs."""
    config = ClusterConfig(
        addresses={"worker": ("a:1", "b:1")}, kind="worker", index=1, local_rank=1
    )

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
