"""Every operation of every workload's optimized graph can run on a GPU.

No GPU is needed: the graphs are made for two, on a host with the rules of oneDNN, and
compared with the kernels that are registered in the installed build of TensorFlow.
"""

import functools
import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest
import small_programs
import tensorflow as tf
from tensorflow.python.framework import kernels

from replicator._tf import compat as _tf_compat

pytestmark = pytest.mark.processes

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/small_programs.py"
CASES = small_programs.gpu_graphs()
# What decides on the host which part of a graph runs next.
CONTROL_FLOW = {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While"}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory, data_dirs):
    del data_dirs  # its variables are in the environment
    if not _kernels("_FusedBatchNormEx") or not tf.test.is_built_with_cuda():
        pytest.skip("this build of TensorFlow has no GPU kernels to compare with")
    folder = tmp_path_factory.mktemp("graphs")
    support = ROOT / "tests/support"
    others = filter(None, [os.environ.get("PYTHONPATH")])
    paths = [str(ROOT), str(support), *others]
    # What a CPU with AVX512-VNNI or AMX turns on by itself, and this one maybe not.
    rules = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        check=False,
        env=os.environ | rules,
        text=True,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    return folder


@functools.cache
def _graph(folder, case):
    return _tf_compat.GraphDef.FromString((folder / ".".join(case)).read_bytes())


@functools.cache
def _kernels(op):
    return list(kernels.get_registered_kernels_for_op(op).kernel)


def _kernel(node):
    """What TensorFlow uses for a node, whose attribute ``_kernel`` asks for a label."""
    label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
    device = "CPU" if "CPU" in node.device else "GPU"
    types = {name: {attr.type, *attr.list.type} for name, attr in node.attr.items()}
    fitting = [
        kernel
        for kernel in _kernels(node.op)
        # The last one serves every type of device that has none of its own.
        if kernel.device_type in (device, "DEFAULT")
        and kernel.label == label
        and all(
            types.get(c.name, set()) - {0} <= {*c.allowed_values.list.type}
            for c in kernel.constraint
        )
    ]
    of_device = [kernel for kernel in fitting if kernel.device_type == device]
    return max(of_device or fitting, key=lambda kernel: kernel.priority, default=None)


def _is_call(graph_def, node):
    names = {function.signature.name for function in graph_def.library.function}
    return node.op in names


def _operations(graph_def):
    functions = (function.node_def for function in graph_def.library.function)
    nodes = itertools.chain(graph_def.node, *functions)
    return [n for n in nodes if n.op != "Placeholder" and not _is_call(graph_def, n)]


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_every_operation_runs_on_its_gpu(graphs, case):
    """Nothing moves to the CPU unnoticed, or fails in the first step.

    Of the kernels that are fused by the rules of CPUs, GPUs have few. A device in a
    function, as of the optimizer's time, would put all replicas on the first GPU.
    """
    graph_def = _graph(graphs, case)
    operations = _operations(graph_def)

    assert operations
    assert set() == {node.op for node in operations if _kernel(node) is None}
    assert [] == [node.op for node in operations if node.op.startswith("_")]
    functions = (function.node_def for function in graph_def.library.function)
    inner = {node.device for node in itertools.chain(*functions)}
    assert set() == inner - {"", "/device:CPU:0"}
    for node in graph_def.node:
        if match := re.match(r"replica_(\d)/", node.name):
            device = node.device.rpartition("device:")[2]
            assert device in (f"GPU:{match[1]}", "CPU:0"), node.name


def _waits(graph_def):
    """Edges from memory of the GPU to a kernel that reads it on the host."""

    def has_kernel(node):
        return node.op != "Placeholder" and not _is_call(graph_def, node)

    nodes = {node.name: node for node in graph_def.node}
    for node in filter(has_kernel, graph_def.node):
        texts = [text for text in node.input if not text.startswith("^")]
        inputs = _arguments(node, _tf_compat.op_def(node.op).input_arg)
        for text, argument in zip(texts, inputs, strict=True):
            name, _, index = text.partition(":")
            source = nodes[name]
            if not has_kernel(source) or not _is_on_host(node, argument):
                continue
            outputs = _arguments(source, _tf_compat.op_def(source.op).output_arg)
            if not _is_on_host(source, outputs[int(index or 0)]):
                yield source.op, node.op, argument


def _arguments(node, definitions):
    names = []
    for arg in definitions:
        count = 1
        if arg.number_attr:
            count = node.attr[arg.number_attr].i
        elif arg.type_list_attr:
            count = len(node.attr[arg.type_list_attr].list.type)
        names += [arg.name] * count
    return names


def _is_on_host(node, argument):
    kernel = _kernel(node)
    return kernel is None or "CPU" in node.device or argument in kernel.host_memory_arg


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_nothing_waits_for_a_value_of_the_gpu_but_decisions(graphs, case):
    """A kernel that reads host memory waits until the GPU has copied a value there."""
    waiting = _waits(_graph(graphs, case))

    assert [] == [edge for edge in waiting if edge[1] not in CONTROL_FLOW]


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case[0] in small_programs.WITH_LAYOUT and case[2] != "mixed_float16"
    ],
    ids=".".join,
)
def test_nhwc_is_kept_where_it_is_native_or_asked_for(graphs, case):
    operations = _operations(_graph(graphs, case))
    convolutions = [node for node in operations if node.op.startswith("Conv2D")]
    layouts = {node.attr["data_format"].s.decode() for node in convolutions}
    # Transpositions and the like that the optimizer put between two layouts.
    converted = [node.name for node in operations if "LayoutOptimizer" in node.name]
    is_kept = "nhwc" in case or "mixed_bfloat16" in case

    assert is_kept == ({"NHWC"} == layouts)
    assert is_kept == (not converted)
    assert is_kept or "NCHW" in layouts
