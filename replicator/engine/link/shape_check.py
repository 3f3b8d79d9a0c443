"""Shape check: a collective needs one shape on all replicas, and says so otherwise.

Only where the trace does not know the shape, which is otherwise that of every replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import Ref, make_node
from replicator.placement.devices import cpu_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from replicator.engine.graph.emitter import Emitter

    Tensor: TypeAlias = Ref | str

# Says in the error of TensorFlow that it is about shapes; the rest is made from it.
SHAPES_DIFFER = "replicator: shapes differ between workers"


def row(emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
    """Emits what workers compare: the dimensions of a tensor, and one number more."""
    dims = emit.dims(f"{name}/dims", ref, dtype, device, tf.int64)
    # So that a scalar has something to compare as well.
    rank = emit.const(f"{name}/one", np.array([1], np.int64), device)
    return emit.concat(f"{name}/row", [dims, rank], tf.int64, device)


def compare(emit: Emitter, name: str, rows: Ref, own: Ref, device: str) -> str:
    """Emits the comparison; returns the node that raises where shapes differ."""
    equal = emit.add(
        f"{name}/equal",
        "Equal",
        [rows, own],
        device,
        "z:0",
        {"T": tf.int64, "incompatible_shape_error": True},
    )
    axes = emit.numbers(f"{name}/axes", [0, 1], device)
    all_equal = emit.add(
        f"{name}/all",
        "All",
        [equal, axes],
        device,
        "output:0",
        {"Tidx": tf.int32, "keep_dims": False},
    )
    text = emit.const(f"{name}/text", np.array(SHAPES_DIFFER, object), device)
    return _require(emit, name, all_equal, text, rows, tf.int64, device)


def between_replicas(
    emit: Emitter,
    name: str,
    what: str,
    refs: Sequence[Tensor],
    dtype: tf.DType,
    devices: Sequence[str],
) -> Ref:
    """Emits a check that the tensors of a program's replicas have one shape.

    For ops that broadcast, where others raise an error of their own.
    """
    cpu = cpu_of(devices[0])
    texts = []
    for replica, (ref, device) in enumerate(zip(refs, devices, strict=True)):
        dims = emit.dims(f"{name}/dims_{replica}", ref, dtype, device)
        attrs = {"template": "{}", "placeholder": "{}", "summarize": -1}
        node = make_node(f"{name}/shape_{replica}", "StringFormat", [dims], cpu, attrs)
        node.attr["T"].list.type.append(tf.int32.as_datatype_enum)
        emit.nodes.append(node)
        texts.append(Ref(node=node.name, port="output:0"))
    attrs = {"N": len(texts), "T": tf.string, "axis": 0}
    shapes = emit.add(f"{name}/shapes", "Pack", texts, cpu, "output:0", attrs)
    attrs = {"T": tf.string, "incompatible_shape_error": True}
    equal = emit.add(f"{name}/equal", "Equal", [shapes, texts[0]], cpu, "z:0", attrs)
    axis = emit.numbers(f"{name}/axis", [0], cpu)
    attrs = {"Tidx": tf.int32, "keep_dims": False}
    all_equal = emit.add(f"{name}/all", "All", [equal, axis], cpu, "output:0", attrs)
    said = (
        f"replicator: {what} got tensors of different shapes on different replicas; "
        "pad them to one shape, or reduce them first; by replica"
    )
    text = emit.const(f"{name}/text", np.array(said, object), cpu)
    check = _require(emit, name, all_equal, text, shapes, tf.string, cpu)
    checked, attrs = f"{name}/checked", {"T": dtype}
    return emit.add(
        checked, "Identity", [refs[0]], devices[0], "output:0", attrs, [check]
    )


def _require(
    emit: Emitter,
    name: str,
    condition: Ref,
    text: Ref,
    found: Ref,
    dtype: tf.DType,
    device: str,
) -> str:
    """Emits an assertion that says a text and what was found."""
    check = f"{name}/assert"
    node = make_node(
        check, "Assert", [condition, text, found], device, {"summarize": 256}
    )
    node.attr["T"].list.type.extend(
        [tf.string.as_datatype_enum, dtype.as_datatype_enum]
    )
    emit.nodes.append(node)
    return check
