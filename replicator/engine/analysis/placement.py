"""Placement: which logical device each op of a step runs on (model parallelism).

Users place some ops and variables; the placement of all others follows: a gradient runs
on the device of its forward op, an op that accesses a variable on that of the variable,
any other on that of its inputs. This is decided on the traced graph, in which gradients
still have the names of their forward ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator._tf.gradients import GRADIENT_SCOPE
from replicator.engine.graph.body import producer
from replicator.step import logical

if TYPE_CHECKING:
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology


def place(traced: TracedStep, topology: Topology) -> None:
    """Gives the nodes of a traced graph their logical devices, in place."""
    if topology.num_logical_devices == 1:
        return
    handles = {
        name: topology.logical_device_of(variable.device)
        for name, variable in traced.variables.items()
    }
    nodes = traced.graph_def.node
    _bypass_tuples(nodes)
    # Before the optimizer runs, which renames gradients, and merges only nodes of one
    # device: it has to know them. What nobody placed is placed here, too,
    # since TensorFlow would put it on the first device, and send activations there and
    # back. Devices are those of no replica yet: copies get theirs from the topology.
    placed = _Placed(nodes, handles)
    for node in nodes:
        if node.op == "Placeholder" or node.device:
            continue
        index = placed.find(node)
        if index is not None:
            placed.index[node.name] = index
    _follow_consumers(nodes, placed.index)
    for node in nodes:
        if placed.index.get(node.name) and not node.device:
            node.device = logical.traced_name(placed.index[node.name])


def of_operands(traced: TracedStep, topology: Topology) -> dict[str, int]:
    """The logical device of each operand of a collective, unless it is the first."""
    if topology.num_logical_devices == 1:
        return {}
    operands = {name for call in traced.collectives for name in call.operands}
    return {
        node.name: index
        for node in traced.graph_def.node
        if node.name in operands and (index := logical.index_of(node.device))
    }


def _bypass_tuples(nodes: Any) -> None:
    """Lets what reads an output of ``IdentityN`` read the input behind it.

    ``tf.custom_gradient``, and so each collective, ends in one for all of its results.
    It has one device: results of all parts of a replica would be sent there and back.
    """
    behind = {
        node.name: [text for text in node.input if not text.startswith("^")]
        for node in nodes
        if node.op == "IdentityN" and not any(t.startswith("^") for t in node.input)
    }

    def source(text: str) -> str:
        while not text.startswith("^") and producer(text) in behind:
            name, _, port = text.partition(":")
            text = behind[name][int(port or 0)]
        return text

    for node in nodes:
        for place, text in enumerate(node.input):
            node.input[place] = source(text)


class _Placed:
    """What is known while walking the graph in the order of its making.

    Attributes:
      index: Logical device by node.
    """

    def __init__(self, nodes: Any, handles: dict[str, int]) -> None:
        self.index: dict[str, int] = {}
        self._handles = handles
        self._by_user: set[str] = set()
        self._forward_scopes: dict[str, set[int]] = {}
        for node in nodes:
            index = logical.index_of(node.device)
            if index is None:
                continue
            self.index[node.name] = index
            self._by_user.add(node.name)
            for scope in _scopes(node.name):
                self._forward_scopes.setdefault(scope, set()).add(index)

    def find(self, node: Any) -> int | None:
        """The logical device of a node that the user did not place."""
        names = [producer(text) for text in node.input if not text.startswith("^")]
        for name in names:
            if name in self._handles:
                return self._handles[name]
        is_gradient = node.name.startswith(GRADIENT_SCOPE)
        if is_gradient:
            forward = self._forward(node.name)
            if forward is not None:
                return forward
        known = [name for name in names if name in self.index]
        if is_gradient:
            # What flows back comes from a later device; the values of the forward pass
            # tell where this op's own forward op ran.
            known = [name for name in known if name in self._by_user] or known
        return max((self.index[name] for name in known), default=None)

    def _forward(self, name: str) -> int | None:
        for scope in _scopes(name.removeprefix(GRADIENT_SCOPE)):
            if scope in self.index:
                return self.index[scope]
            found = self._forward_scopes.get(scope, set())
            if len(found) == 1:
                return next(iter(found))
        return None


def _scopes(name: str) -> list[str]:
    """``a/b/c`` gives ``a/b/c``, ``a/b`` and ``a``."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _follow_consumers(nodes: Any, index: dict[str, int]) -> None:
    """Puts constants where their only users are, so that they are not sent."""
    users: dict[str, set[int]] = {}
    for node in nodes:
        for text in node.input:
            users.setdefault(producer(text), set()).add(index.get(node.name, 0))
    for node in nodes:
        where = users.get(node.name, set())
        if node.op == "Const" and node.name not in index and len(where) == 1:
            index[node.name] = next(iter(where))
