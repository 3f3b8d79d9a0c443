"""Graphs that tests write by hand, and the values of nodes that the linker emits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.engine.graph import body
from replicator.engine.link import chain
from replicator.engine.link.cross_worker import CrossWorker
from replicator.placement.worker_group import Group

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_FUNCTIONS = itertools.count()
# Far from those of programs that other tests run in this process.
_GROUP_KEYS = itertools.count(1_000_000)


@pytest.fixture
def node() -> Callable[..., Any]:
    """Makes a node of a traced graph."""

    def make_node(name: str, op: str, *inputs: str, **types: tf.DType) -> Any:
        made = _tf_compat.NodeDef(name=name, op=op, input=list(inputs))
        for key, dtype in types.items():
            made.attr[key].type = dtype.as_datatype_enum
        return made

    return make_node


@pytest.fixture
def make_body() -> Callable[..., body.Body]:
    """Makes a body of nodes, and of the functions that they call."""

    def make(*nodes: Any, library: tuple[Any, ...] = ()) -> body.Body:
        graph_def = _tf_compat.GraphDef(node=nodes)
        graph_def.library.function.extend(library)
        return body.from_graph_def(graph_def)

    return make


@pytest.fixture
def execute() -> Callable[..., list[np.ndarray]]:
    """Runs emitted nodes as one function.

    Takes the nodes, the value of each argument, and the requested outputs with
    their types; returns NumPy arrays.
    """

    def run(nodes: Any, arguments: Any, outputs: Any) -> list[np.ndarray]:
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
        _tf_compat.add_function(function)
        dtypes = [dtype for _, dtype in outputs]

        @tf.function(autograph=False)
        def call() -> Any:
            return _tf_dispatch.call_function(
                function.signature.name, list(tensors.values()), dtypes
            )

        return [value.numpy() for value in call()]

    return run


@pytest.fixture
def workers(monkeypatch: Any) -> Callable[[int], list[CrossWorker]]:
    """Collectives of several workers that meet in one process, each on its own CPU."""

    def make(num_workers: int) -> list[CrossWorker]:
        key = next(_GROUP_KEYS)
        monkeypatch.setattr(chain, "place_group_key", lambda _: key)
        order = tuple(range(num_workers))
        return [
            CrossWorker(Group(num_workers=num_workers, worker_id=worker, order=order))
            for worker in order
        ]

    return make
