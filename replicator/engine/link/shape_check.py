"""Shape check: a collective needs one shape on all workers, and says so otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import Ref, make_node

if TYPE_CHECKING:
    from replicator.engine.graph.emitter import Emitter

    Tensor = Ref | str

# Says in the error of TensorFlow that it is about shapes; the rest is made from it.
SHAPES_DIFFER = "replicator: shapes differ between workers"


def row(emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
    """Emits what workers compare: the dimensions of a tensor, and one number more."""
    dims = emit.dims(f"{name}/dims", ref, dtype, device, tf.int64)
    # So that a scalar has something to compare as well.
    rank = emit.const(f"{name}/one", np.array([1], np.int64), device)
    return emit.concat(f"{name}/row", [dims, rank], tf.int64, device)


def compare(emit: Emitter, name: str, rows: Ref, own: Ref, device: str) -> str:
    """Emits the comparison; returns the node that raises where shapes differ.

    Args:
      emit: Where nodes go.
      name: What names of nodes begin with.
      rows: The row of each worker.
      own: That of this one.
      device: Where they are compared.
    """
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
    check = f"{name}/assert"
    node = make_node(
        check, "Assert", [all_equal, text, rows], device, {"summarize": 256}
    )
    node.attr["T"].list.type.extend(
        [tf.string.as_datatype_enum, tf.int64.as_datatype_enum]
    )
    emit.nodes.append(node)
    return check
