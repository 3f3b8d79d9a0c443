"""Common nodes: what each call of a task would compute to the same value.

A stage of a pipeline is called once per micro-batch. Constants, reads of variables that
nobody writes meanwhile, and what follows from these alone are the same in all calls, so
inlined calls share one node per device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.engine.graph import body
from replicator.engine.graph.effects import PASS_THROUGH, EffectTable
from replicator.engine.graph.tasks import calls_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_READ = "ReadVariableOp"
_RESOURCE = tf.resource.as_datatype_enum


class Common:
    """The common nodes of the tasks that one function calls."""

    def __init__(
        self,
        nodes: Sequence[Any],
        given: Mapping[str, str],
        waits: Sequence[str],
        effects: EffectTable,
    ) -> None:
        """Finds out which variables keep their values while the tasks run."""
        self._waits = waits
        self._given = given
        self._effects = effects
        self._names: dict[bytes, str] = {}
        self._shared: set[str] = set()
        tasks = {node.name for node in nodes if calls_task(node)}
        written = {node.name: self._written(node) for node in nodes}
        self._written_by_tasks = set().union(*(written[name] for name in tasks))
        writers = {name for name in written if written[name] and name not in tasks}
        # A task after a write may read another value than a task before it.
        is_between = not tasks.isdisjoint(body.reached(body.users_of(nodes), writers))
        self._may_vary = is_between or _has_aliases(nodes)

    def are_common(self, texts: Sequence[str]) -> bool:
        """Whether nothing among the inputs of a node waits for what its task does."""
        waits = [text for text in texts if text.startswith("^")]
        are_waits = any(map(self._is_common, waits))
        return are_waits or all(map(self._is_common, texts[: len(texts) - len(waits)]))

    def waits_of(self, texts: Sequence[str]) -> Sequence[str]:
        """What a common node waits for that has these inputs.

        That is what the function waits for that calls the tasks: with the control edges
        of the first task in the graph, one that is scheduled before would wait for it.
        """
        return () if any(map(self._is_common, texts)) else self._waits

    def name(
        self,
        node: Any,
        name: str,
        texts: Sequence[str],
        device: str,
        *,
        is_awaited: bool,
    ) -> str:
        """The common node that is the same as one of a task; empty if there is none."""
        if node.op == _READ:
            may_be = self._is_kept(texts[0])
        else:
            may_be = not is_awaited and self._is_computed(node, texts)
        if not may_be or any(text.startswith("^") for text in texts):
            return ""
        copy = _tf_compat.NodeDef()
        body.rewrite(copy, node, "", device, texts)
        found = self._names.setdefault(copy.SerializeToString(deterministic=True), name)
        self._shared.add(found)
        return found

    def _is_kept(self, handle: str) -> bool:
        """Whether a variable keeps its value until the last task has run."""
        is_written = self._may_vary or handle in self._written_by_tasks
        return ":" not in handle and not is_written

    def _is_computed(self, node: Any, texts: Sequence[str]) -> bool:
        """Whether a node computes something from results of common nodes alone."""
        if node.op in PASS_THROUGH or not all(map(self._is_common, texts)):
            return False
        effects = self._effects.of(node, len(texts))
        return effects.is_pure and not effects.is_bound

    def _is_common(self, text: str) -> bool:
        return body.producer(text) in self._shared

    def _written(self, node: Any) -> set[str]:
        """The arguments of the inlined function that a node may write."""
        data = [text for text in node.input if not text.startswith("^")]
        written = self._effects.of(node, len(data)).writes
        texts = {
            self._given.get(data[position], data[position]) for position in written
        }
        return {text for text in texts if ":" not in text}


def _has_aliases(nodes: Iterable[Any]) -> bool:
    """Whether a handle has more names than one."""
    return any(
        node.op in PASS_THROUGH and _RESOURCE in _types(node.attr["T"])
        for node in nodes
    )


def _types(attr: Any) -> Sequence[int]:
    return [attr.type, *attr.list.type]
