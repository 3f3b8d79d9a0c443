"""Cluster environments: what TF_CONFIG and resolvers say, and mistakes in them."""

import json

import pytest

from replicator import errors
from replicator.cluster import environment

WORKERS = ["localhost:2301", "localhost:2302"]


def tf_config(addresses, kind="worker", index=0):
    config = {"cluster": addresses, "task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def read(environ):
    return environment.detect(environ).config()


def test_workers_are_numbered_in_order():
    """A worker knows its id, its address and whether it is the chief."""
    config = read(tf_config({"worker": WORKERS, "ps": ["localhost:1"]}, index=1))

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


def test_a_resolver_is_as_good_as_the_environment():
    """Whoever knows the cluster otherwise passes TensorFlow's resolver."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": WORKERS}), task_type="worker", task_id=1
    )
    config = environment.ResolverEnvironment(resolver).config()

    assert read(tf_config({"worker": WORKERS}, index=1)) == config


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, r"TF_CONFIG is not set.*set it in every process, for example"),
        ({"TF_CONFIG": "{"}, r"TF_CONFIG is not JSON \(.*\): '\{'; write it like"),
        ({"TF_CONFIG": "[1]"}, r"must be a JSON object, but is '\[1\]'"),
        ({"TF_CONFIG": "{}"}, r"TF_CONFIG has no 'cluster' object: '\{\}'"),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": WORKERS}})},
            r"TF_CONFIG has no 'task' object",
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": WORKERS}, "task": {"index": 1}}
                )
            },
            r"TF_CONFIG\['task'\] has no 'type': \{'index': 1\}",
        ),
        (tf_config({"worker": "localhost:1"}), r"'worker' must be a list of addresses"),
        (
            tf_config({"worker": []}),
            r"'worker' must be a list of addresses, but is \[\]",
        ),
        (tf_config({"tower": WORKERS}), r"unknown kind 'tower'; kinds are 'chief'"),
        (tf_config({"chief": WORKERS}, "chief"), r"has 2 chiefs, but at most one"),
        (tf_config({"ps": WORKERS}, "ps"), r"has no 'worker': \{'ps'"),
        (
            tf_config({"worker": ["localhost"]}),
            r"address 'localhost' is not of the form",
        ),
        (tf_config({"worker": ["a:99999"]}), r"'a:99999' .* port from 1 to 65535"),
        (tf_config({"worker": ["a:b"]}), r"address 'a:b' is not of the form"),
        (tf_config({"worker": [7]}), r"address 7 is not of the form 'name:port'"),
        (tf_config({"worker": ["a:1", "a:1"]}), r"address 'a:1' is listed twice"),
        (tf_config({"worker": WORKERS}, "ps"), r"of kind 'ps', but the cluster lists"),
        (
            tf_config({"worker": WORKERS}, index=2),
            r"index 2 .* 2 of kind 'worker'.*0 to 1",
        ),
        (tf_config({"worker": WORKERS}, index=-1), r"index -1 .* out of range"),
        (tf_config({"worker": WORKERS}, "evaluator", -1), r"of kind 'evaluator', but"),
        (
            {
                "TF_CONFIG": json.dumps(
                    {
                        "sparseCluster": {"worker": {"1": "a:1"}, "ps": []},
                        "task": {"type": "worker", "index": 1},
                    }
                )
            },
            r"'sparseCluster', but workers .* need the addr.*enableDynamicWorker: f",
        ),
        (tf_config({"worker": WORKERS}, index="x"), r"index 'x' .* is not an integer"),
        (tf_config({"worker": WORKERS}, index=1.5), r"index 1.5 .* is not an integer"),
    ],
)
def test_a_mistake_in_tf_config_is_explained(environ, message):
    with pytest.raises(errors.ClusterConfigError, match=message):
        read(environ)


def test_a_server_is_no_worker():
    config = read(tf_config({"worker": WORKERS, "ps": ["localhost:1"]}, "ps"))

    with pytest.raises(errors.ClusterConfigError, match=r"ps:0, not a worker"):
        config.worker_id  # noqa: B018 (the property raises)


@pytest.mark.parametrize("others", [{}, {"evaluator": ["localhost:9"]}])
def test_an_evaluator_reads_its_cluster_and_takes_no_part(others):
    """A TFJob does not list it; whoever does may."""
    config = read(tf_config({"worker": WORKERS, **others}, "evaluator"))

    assert ("evaluator", 0, 2) == (config.kind, config.index, config.num_workers)
    with pytest.raises(
        errors.ClusterConfigError,
        match=r"evaluator:0, not a worker; .* restores the checkpoints .*'in_graph'",
    ):
        config.worker_id  # noqa: B018 (the property raises)


def test_an_evaluator_that_nobody_lists_listens_nowhere():
    config = read(tf_config({"worker": WORKERS}, "evaluator"))

    with pytest.raises(
        errors.ClusterConfigError, match=r"evaluator:0, which the cluster does not li"
    ):
        config.address  # noqa: B018 (the property raises)
