"""Graphs that tests write by hand, and the values of nodes that the linker emits."""

import dataclasses
import itertools
from typing import Any

import pytest
import tensorflow as tf
from graphs import make_call

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.core.devices import Group, make_topology
from replicator.engine import body, chain, plan
from replicator.engine.linker import Linker

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
_FUNCTIONS = itertools.count()
# Far from those of programs that other tests run in this process.
_GROUP_KEYS = itertools.count(1_000_000, 8)


@pytest.fixture
def node():
    def make_node(name, op, *inputs, **types):
        made = _tf_compat.NodeDef(name=name, op=op, input=list(inputs))
        for key, dtype in types.items():
            made.attr[key].type = dtype.as_datatype_enum
        return made

    return make_node


@pytest.fixture
def make_body():
    return lambda *nodes: body.from_graph_def(_tf_compat.GraphDef(node=nodes))


@pytest.fixture
def execute():
    """Runs emitted nodes as one function."""

    def run(nodes, arguments, outputs):
        function = _tf_compat.FunctionDef()
        function.signature.name = f"unit_test_{next(_FUNCTIONS)}"
        tensors = {name: tf.constant(value) for name, value in arguments.items()}
        for name, tensor in tensors.items():
            function.signature.input_arg.add(
                name=name, type=tensor.dtype.as_datatype_enum
            )
        for index, (ref, dtype) in enumerate(outputs):
            function.signature.output_arg.add(
                name=f"out_{index}", type=dtype.as_datatype_enum
            )
            function.ret[f"out_{index}"] = str(ref)
        function.node_def.extend(nodes)
        _tf_compat.keep_functions(run, [function])
        dtypes = [dtype for _, dtype in outputs]

        @tf.function(autograph=False)
        def call():
            return _tf_dispatch.call_function(
                function.signature.name, list(tensors.values()), dtypes
            )

        return [value.numpy() for value in call()]

    return run


@pytest.fixture
def workers(monkeypatch):
    """Groups of several workers that meet in one process, each on its own CPUs."""

    def make(num_workers, num_devices=1):
        key = next(_GROUP_KEYS)

        def group_key(device):
            return key + int(device.rpartition(":")[2]) % num_devices

        monkeypatch.setattr(chain, "place_group_key", group_key)
        order = tuple(range(num_workers))
        return [
            Group(num_workers=num_workers, worker_id=worker, order=order)
            for worker in order
        ]

    return make


@dataclasses.dataclass(frozen=True)
class Linked:
    results: list[list[Any]]  # By replica of the job, then by tensor.
    nodes: list[Any]  # Of all programs.
    plans: list[Any]  # One per program.

    def count(self, *ops):
        return sum(node.op in ops for node in self.nodes)


@pytest.fixture
def link(execute, workers):
    def run(kind, arrays, *, memories=None, num_workers=1, shapes=None, needed=None):
        count = len(arrays)
        local = count // num_workers
        call = make_call(
            shapes or [array.shape for array in arrays[0]],
            kind,
            num_replicas=count,
            dtypes=[tf.as_dtype(array.dtype) for array in arrays[0]],
            needed_if=None if needed is None else "needed",
        )
        joined = workers(num_workers, local) if num_workers > 1 else [None]
        nodes, outputs, plans = [], [], []
        for worker, group in enumerate(joined):
            first = worker * local
            places = dataclasses.replace(
                make_topology(
                    [[name] for name in CPU[first : first + local]],
                    num_replicas=count,
                    first_replica_id=first,
                    num_programs=num_workers,
                    program_id=worker,
                ),
                memories=memories or (0,) * local,
            )
            (planned,) = plan.make_plan([call], places)
            linker = Linker(places, f"w{worker}", group)
            linker.link(planned, lambda r, node, f=first: f"r{f + r}_{node}")
            nodes += linker.nodes
            plans.append(planned)
            outputs += [
                (linker.results[marker][replica], dtype)
                for replica in range(local)
                for marker, dtype in zip(call.markers, call.dtypes, strict=True)
            ]
        arguments = {
            f"r{replica}_{node}": value
            for replica, values in enumerate(arrays)
            for node, value in zip(call.operands, values, strict=True)
        }
        if needed is not None:
            arguments |= {f"r{replica}_needed": needed for replica in range(count)}
        flat = execute(nodes, arguments, outputs)
        size = len(call.markers)
        by_replica = [flat[r * size : (r + 1) * size] for r in range(count)]
        return Linked(by_replica, nodes, plans)

    return run
