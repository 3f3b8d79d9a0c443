"""Jobs of workers and servers: devices of this process, or real processes.

The chiefs of real clusters compute cases while tests read them.
"""

import itertools
from pathlib import Path

import case_cluster
import numpy as np
import pytest
import tensorflow as tf

from replicator.async_training.commit import CommitState
from replicator.async_training.optimizer import ServerOptimizer
from replicator.async_training.steps import WorkerSteps
from replicator.async_training.table import Placement, ServerTable
from replicator.core.topology import make_topology
from replicator.optimizer.options import OptimizerOptions

FOLDER = Path(__file__).parent
HOW = {"path": FOLDER, "has_chief": True, "num_cpu_devices": 2}
CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
_NAMES = itertools.count()


@pytest.fixture(scope="session")
def two_servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_servers")
    with case_cluster.started(
        "two_server_cases", folder, num_workers=2, num_ps=2, **HOW
    ) as chief:
        yield chief


class Job:
    cpus = CPU

    def __init__(self, num_servers=2, share=1, num_workers=2):
        self.share = share
        self.topologies = [
            make_topology(
                [[CPU[worker]]] * share,
                num_replicas=share,
                first_replica_id=worker * share,
            )
            for worker in range(num_workers)
        ]
        every = [[CPU[w]] for w in range(num_workers) for _ in range(share)]
        self.placement = Placement(num_servers)
        self.placement.devices = tuple(CPU[2 : 2 + num_servers])
        self.table = ServerTable(make_topology(every), num_workers, self.placement)
        self.name = f"job of a test {next(_NAMES)}"
        self.commit_states = [
            CommitState(device, num_workers, self.name)
            for device in self.placement.devices
        ]
        self.sequence_numbers = [[0] * num_servers for _ in range(num_workers)]

    def variables(self, *values, **kwargs):
        with self.placement.scope():
            return [tf.Variable(value, **kwargs) for value in values]

    def optimizer(self, make_inner, variables):
        with self.placement.scope():
            inner = make_inner()
        made = ServerOptimizer(
            inner,
            options=OptimizerOptions(),
            placement=self.placement,
        )
        made.build(variables)
        return made

    def steps(self, step_fn, *specs):
        return WorkerSteps(
            step_fn,
            specs,
            topologies=self.topologies,
            table=self.table,
            commit_states=self.commit_states,
            placement=self.placement,
        )

    def run(self, steps, worker=0, num_steps=1, source=None):
        spec = tf.nest.map_structure(tf.type_spec_from_value, source)
        given = steps.assign(
            worker, num_steps, source=source, spec=spec, keeps_results=True
        )
        used = self.sequence_numbers[worker]
        outputs = given.run(None, used, num_steps)
        self.sequence_numbers[worker] = list(
            np.add(used, num_steps * np.int64(given.num_commits))
        )
        return [output.numpy() for output in outputs]

    def counted(self, name="clock"):
        return [np.asarray(getattr(each, name)).tolist() for each in self.commit_states]


@pytest.fixture
def make_job():
    return Job


@pytest.fixture
def job():
    return Job()
