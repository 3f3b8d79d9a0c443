"""Named dimensions: which axis of a mesh of devices splits which dimension.

A mesh has axes, such as ``{"batch": 2, "model": 2}``. Dimensions of variables have
names, by rules on paths or by ``named``; a layout says which axis splits dimensions of
which name (Shazeer et al. 2018, "Mesh-TensorFlow", section 3; rules on paths as in T5X
and MaxText). Dimensions without a name, or whose name has no axis, are whole on every
device.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.mesh import MeshVariable
from replicator.core.validation import format_value, is_integer
from replicator.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

dtensor = tf.experimental.dtensor

BATCH = "batch"
"""The axis of a mesh over which the examples of a batch are divided."""

Names = tuple[str | None, ...]


def check_mesh(mesh: Any) -> dict[str, int]:
    """Returns the axes of a mesh and their sizes, in their order."""
    said = (
        f"mesh={format_value(mesh)} must be a dictionary of axes and their sizes, such "
        "as {'batch': 2, 'model': 2}"
    )
    if not isinstance(mesh, dict) or not mesh:
        raise LayoutError(said)
    for axis, size in mesh.items():
        if not (isinstance(axis, str) and axis.isidentifier()):
            raise LayoutError(f"{said}; the axis {format_value(axis)} is not a name")
        if not is_integer(size, least=1):
            raise LayoutError(f"{said}; {axis!r} has the size {format_value(size)}")
    return dict(mesh)


def check_names(names: Sequence[Any]) -> Names:
    """Returns the names of dimensions, each a word or None."""
    for name in names:
        if not (name is None or (isinstance(name, str) and name.isidentifier())):
            raise LayoutError(
                f"{format_value(name)} is not the name of a dimension; use a word, or "
                "None for a dimension that is never split"
            )
    return tuple(names)


def named(variable: Any, *names: str | None) -> Any:
    """Names the dimensions of a variable, for the backend ``dtensor``.

    Call it in ``repl.context()``, right after the variable was made and before the
    first step; its layout follows. Other backends split no dimensions, and ignore it.

    Args:
      variable: A ``tf.Variable`` or a Keras variable.
      *names: One for each dimension; None for one that is never split.

    Returns:
      The variable.

    Raises:
      LayoutError: Not as many names as dimensions, or a dimension that the axis of its
        name cannot split evenly.
      TypeError: Not a variable.
    """
    if not _tf_compat.is_variable(variable):
        raise TypeError(
            f"named() takes a variable, but got {format_value(variable)}; name the "
            "variables of a layer: named(layer.kernel, 'inputs', 'hidden')"
        )
    inner = _tf_compat.unwrap(variable)
    checked = check_names(names)
    _check_rank(checked, variable.name, inner.shape.rank)
    if isinstance(inner, MeshVariable):
        inner.place(inner, checked)
    return variable


def _check_rank(names: Names, path: str, rank: int) -> None:
    if len(names) != rank:
        raise LayoutError(
            f"{path!r} has {rank} dimensions, but got {len(names)} names {names}; give "
            "one for each, or None for a dimension that is never split"
        )


class LayoutRules:
    """Layouts of variables over a mesh.

    Attributes:
      mesh: The mesh of devices.
      sizes: Its axes and their sizes.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        devices: Sequence[str],
        layout: Mapping[str, str],
        names: Mapping[str, Sequence[str | None]],
    ) -> None:
        self.sizes = dict(sizes)
        self.mesh = dtensor.create_mesh(list(sizes.items()), devices=list(devices))
        self._axes = _check_layout(layout, self.sizes)
        self._names = _check_rules(names)

    def names_of(self, path: str, rank: int) -> Names:
        """Names of the dimensions of a variable, by the first rule for its path."""
        for pattern, names in self._names:
            if pattern.search(path):
                _check_rank(names, path, rank)
                return names
        return (None,) * rank

    def layout(self, names: Names, path: str, shape: Sequence[int]) -> Any:
        """The layout of a variable whose dimensions have names."""
        axes = [None if name is None else self._axes.get(name) for name in names]
        taken = [axis for axis in axes if axis is not None]
        if len(set(taken)) < len(taken):
            raise LayoutError(
                f"{path!r} has the dimensions {names}, of which the layout splits two "
                f"over the axis {max(taken, key=taken.count)!r}; give one of them "
                "another name, or None"
            )
        for axis, name, size in zip(axes, names, shape, strict=True):
            if axis is not None and size % self.sizes[axis]:
                raise LayoutError(
                    f"{path!r} has {size} in its dimension {name!r}, which the "
                    f"{self.sizes[axis]} devices of the axis {axis!r} cannot divide; "
                    "choose a size that is a multiple, or give the dimension None"
                )
        return dtensor.Layout([axis or dtensor.UNSHARDED for axis in axes], self.mesh)

    def place(self, variable: MeshVariable, names: Names) -> None:
        """Gives a variable names, and the layout that follows from them."""
        layout = self.layout(names, variable.path, variable.shape)
        variable.dimensions = names
        if layout != variable.layout:
            variable.move(layout)

    def batch_layout(self, rank: int) -> Any:
        """The layout of batches: their examples are divided over the batch axis."""
        if rank == 0 or BATCH not in self.sizes:
            return dtensor.Layout.replicated(self.mesh, rank)
        return dtensor.Layout.batch_sharded(self.mesh, BATCH, rank)

    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.sizes.values())

    def replica_of(self, device: int) -> int:
        """The place on the batch axis of a device, in the order of the mesh."""
        for axis in reversed(self.sizes):
            device, index = divmod(device, self.sizes[axis])
            if axis == BATCH:
                return index
        return 0


def _check_layout(layout: Any, sizes: Mapping[str, int]) -> dict[str, str]:
    if not isinstance(layout, dict):
        raise LayoutError(
            f"layout={format_value(layout)} must be a dictionary from names of "
            "dimensions to axes of the mesh, such as {'hidden': 'model'}"
        )
    check_names(list(layout))
    for name, axis in layout.items():
        if not isinstance(axis, str) or axis not in sizes:
            raise LayoutError(
                f"layout splits {name!r} over {format_value(axis)}, which is no axis "
                f"of the mesh; use one of {', '.join(sizes)}"
            )
    return dict(layout)


def _check_rules(names: Any) -> list[tuple[re.Pattern[str], Names]]:
    said = (
        "names must be a dictionary from regular expressions on paths of variables to "
        "names of their dimensions, such as {'expand/kernel': ('width', 'hidden')}"
    )
    if not isinstance(names, dict):
        raise LayoutError(f"{said}; got {format_value(names)}")
    compiled = []
    for pattern, of_path in names.items():
        if isinstance(of_path, str) or not isinstance(of_path, (tuple, list)):
            raise LayoutError(f"{said}; got {format_value(of_path)} for {pattern!r}")
        try:
            compiled.append((re.compile(pattern), check_names(of_path)))
        except (TypeError, re.error) as error:
            raise LayoutError(
                f"{said}; {format_value(pattern)} is not one: {error}"
            ) from error
    return compiled
