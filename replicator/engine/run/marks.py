"""Marks: when parts of a linked step begin and end, as ``Timestamp`` ops.

They are added to the linked graph, after tracing: in a traced function TensorFlow would
put all stateful ops into one order, across devices, and a step that is measured would
be another one.

A part is what a device does for one layer in one direction, for one task of a pipeline,
or for one bucket of a collective. A mark is the moment when a node has run whose result
another part needs; that part's nodes that use it wait for the mark, which is all that
is added to the order: they wait for the node anyway. A part begins with the last of the
marks that it needs, and ends with the last of its own. For a bucket, what passes
between the first and the last mark that it needs is a wait for the straggler. Marks
that nobody waits for would change nothing in the step, and come too late (0084).
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf.gradients import GRADIENT_SCOPE
from replicator.engine.graph.body import Ref, make_node, producer, reached, users_of
from replicator.placement.devices import cpu_of
from replicator.step.stage_names import END, TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMPUTE = "compute"
COLLECTIVE = "collective"

_COPY = re.compile(r"replica_\d+/")
_LAYER_DEPTH = 2
# Nodes that are there before a step begins, or that take no time.
_PASSIVE = frozenset(
    {"Const", "ReadVariableOp", "Identity", "IdentityN", "NoOp", "Shape"}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What is between marks.

    Attributes:
      kind: ``compute`` or ``collective``.
      name: Of the layer and its direction, or of the bucket.
      device: Whose row it is in.
      begin: Indices of the marks that it needs.
      end: Indices of its own.
    """

    kind: str
    name: str
    device: str
    begin: tuple[int, ...]
    end: tuple[int, ...]


class Marks:
    """The marks of one linked step.

    Attributes:
      marks: The node, or the argument, of each measured time.
      parts: What they separate.
    """

    def __init__(self, nodes: Sequence[Any], prefix: str, batch: Iterable[str]) -> None:
        """Finds the parts of a step.

        Args:
          nodes: All ``NodeDef``s of the linked function.
          prefix: What names of collectives begin with.
          batch: Names of the arguments that are inputs of the step.
        """
        self.marks: list[str] = []
        self._waiting: dict[int, set[str]] = {}
        self._numbers: dict[str, int] = {}
        self._default_device = next(n.device for n in nodes if n.device)
        self.parts: list[Part] = []
        self._nodes = {node.name: node for node in nodes}
        self._inputs = {
            node.name: [producer(text) for text in node.input] for node in nodes
        }
        self._users = users_of(nodes)
        self._collective = re.compile(
            rf"{re.escape(prefix)}/(collective_\d+_\d+)(?:/|$)"
        )
        self._batch = frozenset(batch)
        self._conditional = self._find_conditional()
        for (kind, name, device), members in self._groups().items():
            self._add(kind, name, device, members)

    def add_to(self, nodes: list[Any], prefix: str) -> str:
        """Adds the marks to the nodes of the step.

        Args:
          nodes: Those that the marks were made of; some of them wait for marks then.
          prefix: What names of new nodes begin with.

        Returns:
          The tensor of all times, [n], float64.
        """
        for index, waiting in self._waiting.items():
            for name in sorted(waiting):
                self._nodes[name].input.append(f"^{prefix}/mark_{index}")
        stamps = [
            make_node(
                f"{prefix}/mark_{index}",
                "Timestamp",
                [],
                self._place_of(source),
                {},
                [self._ends(source)],
            )
            for index, source in enumerate(self.marks)
        ]
        times = [Ref(node=node.name, port="ts:0") for node in stamps]
        attrs = {"N": len(times), "T": tf.float64, "axis": 0}
        name = f"{prefix}/marks"
        packed = make_node(name, "Pack", times, stamps[0].device, attrs)
        nodes += [*stamps, packed]
        return f"{name}:output:0"

    def _place_of(self, source: str) -> str:
        node = self._nodes.get(source)
        if node is None or not node.device:
            return self._default_device
        return cpu_of(node.device)

    def _groups(self) -> dict[tuple[str, str, str], list[str]]:
        found: dict[tuple[str, str, str], list[str]] = {}
        for name, node in self._nodes.items():
            if name in self._conditional or node.op in _PASSIVE:
                continue
            key = self._part_of(name)
            if key is not None:
                found.setdefault((*key, node.device), []).append(name)
        return found

    def _part_of(self, name: str) -> tuple[str, str] | None:
        match = self._collective.match(name)
        if match:
            return COLLECTIVE, match[1]
        copy = _COPY.match(name)
        if copy is None:
            return None
        rest = name[copy.end() :]
        task = TASK.match(rest)
        if task and f"{name}{END}" in self._nodes:  # not sums beside the call
            return COMPUTE, f"{copy[0]}{task[0]}"
        is_backward = rest.startswith(GRADIENT_SCOPE)
        folders = rest.removeprefix(GRADIENT_SCOPE).split("/")[:-1]
        if len(folders) < _LAYER_DEPTH:
            return None
        layer = "/".join(folders[:_LAYER_DEPTH])
        return COMPUTE, f"{copy[0]}{layer}{' backward' if is_backward else ''}"

    def _add(self, kind: str, name: str, device: str, members: Sequence[str]) -> None:
        inside = set(members)
        later = reached(self._users, inside)
        uses: dict[str, set[str]] = {}
        for member in members:
            for text in self._inputs[member]:
                source = self._origin(text)
                if kind == COLLECTIVE and source in self._batch:
                    continue  # it waits for all batches, and uses none
                if source not in inside | later and self._is_moment(source):
                    uses.setdefault(source, set()).add(member)
        own = [m for m in members if self._has_user_outside(m, inside)]
        if uses and own:
            for source, users in uses.items():
                self._waiting.setdefault(self._mark(source), set()).update(users)
            self.parts.append(
                Part(
                    kind=kind,
                    name=name,
                    device=device,
                    begin=tuple(self._mark(source) for source in uses),
                    end=tuple(self._mark(member) for member in own),
                )
            )

    def _has_user_outside(self, name: str, inside: set[str]) -> bool:
        users = self._users.get(name, ())
        return not users or not inside.issuperset(users)

    def _mark(self, source: str) -> int:
        if source not in self._numbers:
            self._numbers[source] = len(self.marks)
            self.marks.append(source)
        return self._numbers[source]

    def _origin(self, source: str) -> str:
        """The node whose value, or whose end, this one only passes on."""
        node = self._nodes.get(source)
        while node is not None and (node.op == "Identity" or source.endswith(END)):
            source = self._inputs[source][0]
            node = self._nodes.get(source)
        return source

    def _ends(self, source: str) -> str:
        """What a mark waits for: all results of a call that is inlined later."""
        end = f"{source}{END}"
        return end if end in self._nodes else source

    def _is_moment(self, source: str) -> bool:
        """Whether a node, or an argument, is something that a part may wait for."""
        if source in self._conditional:
            return False
        node = self._nodes.get(source)
        return source in self._batch if node is None else node.op not in _PASSIVE

    def _find_conditional(self) -> frozenset[str]:
        """Nodes that may not run, so that no mark may wait for them."""
        ops = {name: node.op for name, node in self._nodes.items()}
        switches = {name for name, op in ops.items() if op == "Switch"}
        merges = {name for name, op in ops.items() if op == "Merge"}
        return frozenset(switches | reached(self._users, switches, without=merges))


def _ready(marks: Marks, times: Sequence[float], part: Part) -> dict[str, float]:
    """By replica, when all was there that a part needs of it."""
    found: dict[str, float] = {}
    for index in part.begin:
        copy = _COPY.match(marks.marks[index])
        replica = copy[0] if copy else ""
        found[replica] = max(found.get(replica, times[index]), times[index])
    return found


def spans(
    marks: Marks, times: Sequence[float]
) -> list[tuple[Part, float, float, float]]:
    """Returns each part with three times, in seconds.

    When the first replica had all that the part needs of it, its begin, and its end.
    """
    return [
        (
            part,
            min(_ready(marks, times, part).values()),
            max(times[index] for index in part.begin),
            max(times[index] for index in part.end),
        )
        for part in marks.parts
    ]
