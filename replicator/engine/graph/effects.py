"""The effects of an operation on resources and random state, read from the graph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.engine.graph.body import producer
from replicator.engine.graph.stamps import called_functions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

READ_OPS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    }
)
# They wait, and have no effect on values: one lock is enough for all replicas.
_WAIT_OPS = frozenset({"ConsumeMutexLock", "MutexLock"})
_WRITE_PREFIXES = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_CALL_OPS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    }
)
_BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
PASS_THROUGH = frozenset({"Identity", "IdentityN"})
_ARG_TYPES = (tf.resource.as_datatype_enum,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """What one operation, with the functions it calls, may do."""

    # Same inputs give same outputs, and nothing else happens, but for reads and writes
    # of variables.
    is_pure: bool
    writes: frozenset[int]  # Positions of data inputs whose variable may be written.
    # To one replica: draws from a stateful random stream, or calls Python, which keeps
    # what the gradient of the call needs.
    is_bound: bool


def called_by(proto: Any, functions: Collection[str]) -> list[str]:
    """Names of those functions that a node calls."""
    if not functions:
        return []
    names = [proto.op, *(called.name for called in called_functions(proto))]
    return [name for name in names if name in functions]


def takes_inputs(proto: Any, functions: Collection[str]) -> bool:
    """Whether the functions that a node calls take its own inputs."""
    return proto.op in _CALL_OPS or proto.op in functions


def first_argument(proto: Any) -> int:
    """Which input of such a node is the first argument: 0 may choose the branch."""
    return int(proto.op in _BRANCHES)


class EffectTable:
    """Effects of nodes, looking through the functions of one library."""

    def __init__(self, library: Iterable[Any]) -> None:
        self._functions: Mapping[str, Any] = {f.signature.name: f for f in library}
        self._of_functions: dict[str, Effects] = {}

    def of(self, proto: Any, num_data_inputs: int) -> Effects:
        """Returns the effects of a node."""
        called = called_by(proto, self._functions)
        if called and takes_inputs(proto, self._functions):
            return self._of_call(proto, called)
        definition = _tf_compat.op_def(proto.op)
        is_stateful = bool(definition and definition.is_stateful)
        is_bound = is_stateful and not {"seed", "token"}.isdisjoint(proto.attr)
        # Datasets and the like: inputs are not those of the functions they call.
        is_bound |= any(self.is_bound(name) for name in called)
        if proto.op in READ_OPS or proto.op in PASS_THROUGH or proto.op in _WAIT_OPS:
            return Effects(is_pure=True, writes=frozenset(), is_bound=False)
        if proto.op.startswith(_WRITE_PREFIXES):
            # Slots of fused updates are handles too: which of the inputs are handles
            # is known to the caller, so every position counts as written.
            everything = frozenset(range(num_data_inputs))
            return Effects(is_pure=True, writes=everything, is_bound=False)
        is_pure = definition is not None and not is_stateful
        is_pure &= all(self._of_function(name).is_pure for name in called)
        writes = frozenset() if is_pure else frozenset(range(num_data_inputs))
        return Effects(is_pure=is_pure, writes=writes, is_bound=is_bound)

    def is_bound(self, name: str) -> bool:
        """Whether a function is bound to one replica; see ``Effects``."""
        return self._of_function(name).is_bound

    def _of_call(self, proto: Any, called: list[str]) -> Effects:
        effects = [self._of_function(name) for name in called]
        written: set[int] = set().union(*(e.writes for e in effects))
        first = first_argument(proto)
        return Effects(
            is_pure=all(e.is_pure for e in effects),
            writes=frozenset(index + first for index in written),
            is_bound=any(e.is_bound for e in effects),
        )

    def _of_function(self, name: str) -> Effects:
        if name not in self._of_functions:
            # A recursive function is looked at once; assume the worst meanwhile.
            function = self._functions[name]
            everything = frozenset(range(len(function.signature.input_arg)))
            self._of_functions[name] = Effects(
                is_pure=False, writes=everything, is_bound=True
            )
            self._of_functions[name] = self._analyze(function)
        return self._of_functions[name]

    def _analyze(self, function: Any) -> Effects:
        handles = {
            arg.name: index
            for index, arg in enumerate(function.signature.input_arg)
            if arg.type in _ARG_TYPES
        }
        is_pure, is_bound, writes = True, False, set()
        for proto in function.node_def:
            data = [text for text in proto.input if not text.startswith("^")]
            effects = self.of(proto, len(data))
            is_pure &= effects.is_pure
            is_bound |= effects.is_bound
            for position, text in enumerate(data):
                origin = producer(text)
                if origin not in handles:
                    continue
                if proto.op in PASS_THROUGH:
                    handles[proto.name] = handles[origin]
                elif position in effects.writes:
                    writes.add(handles[origin])
        return Effects(is_pure=is_pure, writes=frozenset(writes), is_bound=is_bound)
