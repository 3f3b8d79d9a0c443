"""TensorFlow's registry of kernels: what can run where."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.python.framework import kernels as tf_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

# Kernels of this type serve every type of device that has none of its own.
_DEFAULT = "DEFAULT"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One registered kernel."""

    device_type: str  # Such as ``GPU``.
    label: str  # Nodes ask for it by their attribute ``_kernel``; mostly empty.
    # By type attribute, the data types it takes; attributes that are missing take all.
    types: Mapping[str, frozenset[tf.DType]]
    # Names of the inputs and outputs that it reads or leaves in host memory.
    host_args: frozenset[str]
    priority: int  # The highest of those that fit is used.

    def takes(self, types: Mapping[str, frozenset[tf.DType]]) -> bool:
        """Whether it takes all of the types that attributes have."""
        return all(
            given <= self.types[name]
            for name, given in types.items()
            if name in self.types
        )


@functools.cache
def kernels_of(op: str) -> tuple[Kernel, ...]:
    """All kernels of an op in this build of TensorFlow (test_grappler)."""
    return tuple(
        Kernel(
            device_type=kernel.device_type,
            label=kernel.label,
            types={
                constraint.name: frozenset(
                    tf.as_dtype(number)
                    for number in constraint.allowed_values.list.type
                )
                for constraint in kernel.constraint
            },
            host_args=frozenset(kernel.host_memory_arg),
            priority=kernel.priority,
        )
        for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel
    )


def find_kernel(
    op: str,
    device_type: str,
    types: Mapping[str, frozenset[tf.DType]],
    label: str = "",
) -> Kernel | None:
    """The kernel that TensorFlow uses for an op, or None (test_grappler)."""
    for device in (device_type, _DEFAULT):
        fitting = [
            kernel
            for kernel in kernels_of(op)
            if kernel.device_type == device
            and kernel.label == label
            and kernel.takes(types)
        ]
        if fitting:
            return max(fitting, key=lambda kernel: kernel.priority)
    return None


def has_kernel(op: str, device_type: str, dtype: tf.DType) -> bool:
    """Whether an op of one data type can run on a type of device (test_fused)."""
    names = {name for kernel in kernels_of(op) for name in kernel.types}
    name = "T" if "T" in names else "dtype"
    return find_kernel(op, device_type, {name: frozenset({dtype})}) is not None
