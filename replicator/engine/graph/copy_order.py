"""What the copies of a node are called, and what they wait for.

An owned write runs on one replica for all. Whatever waits for it on another replica
waits for the copy of its result, or for what the write itself would have waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.engine.graph.liveness import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node, Ref
    from replicator.engine.graph.liveness import Liveness
    from replicator.placement.topology import Topology

    # (replica, placeholder) -> what stands for it there
    Resolve = Callable[[int, str], Ref | str]


class CopyOrder:
    """Which copies of a body's nodes exist, their names and their control edges."""

    def __init__(
        self,
        body: Body,
        topology: Topology,
        *,
        merged: Collection[str],
        liveness: Liveness | None,
        resolve: Resolve,
        received: Mapping[tuple[str, str], Ref | str] | None,
    ) -> None:
        """Prepares; see ``Replicas`` for the arguments."""
        self._body = body
        self._topology = topology
        self._replicas = range(topology.num_local_replicas)
        self._merged = frozenset(merged)
        self._writers = {} if liveness is None else liveness.writers
        self._written = {} if liveness is None else liveness.written
        self._emitted = None if liveness is None else liveness.emitted
        self._earlier = {} if liveness is None else liveness.earlier
        self._homes = {} if liveness is None else liveness.homes
        self._resolve = resolve
        self._received = received
        self._inputs = {
            node.name: ([ref.node for ref in node.inputs], node.controls)
            for node in body.nodes
        }
        self._waits: dict[tuple[int, str], list[str]] = {}
        primaries = topology.primaries
        self.sharing: dict[int, Sequence[int]] = {
            primary: [r for r in self._replicas if primaries[r] == primary]
            for primary in dict.fromkeys(primaries)
        }

    def writer(self, node: str) -> int | None:
        """The replica that runs an owned write, or ``ELSEWHERE``; None for others."""
        return self._writers.get(node)

    def copies(self, node: str) -> dict[int, Sequence[int]]:
        """By replica that has a copy of a node, the replicas for which it stands."""
        writer = self.writer(node)
        if writer is not None:
            # Others may read what exists once: it waits for all of them.
            return {} if writer == ELSEWHERE else {writer: self._replicas}
        if node not in self._merged:
            return {replica: [replica] for replica in self._replicas}
        if node in self._homes:
            home = self._homes[node]
            return {home: self.sharing[home]} if self._is_emitted(node) else {}
        return {
            primary: replicas
            for primary, replicas in self.sharing.items()
            if self._emitted is None or primary in self._emitted[node]
        }

    def name(self, replica: int, node: str) -> str:
        """Name of a node on a replica of this program."""
        owner = self._topology.primaries[replica] if node in self._merged else replica
        owner = self._writers.get(node, self._homes.get(node, owner))
        return f"replica_{self._topology.replica_id(owner)}/{node}"

    def new(self, node: str, handle: str) -> str:
        """Name of the node that reads the result of an owned write."""
        return f"{self.name(0, node)}/new_{handle}"

    def refresh_name(self, node: str, handle: str, primary: int) -> str:
        """Name of the node that gives a primary's copy the result of an owned write."""
        replica_id = self._topology.replica_id(primary)
        return f"replica_{replica_id}/{node}/refresh_{handle}"

    def effects(self, node: str) -> list[str]:
        """Names of the nodes that have the effect of a node on all replicas."""
        edges = [edge for r in self._replicas for edge in self.after(r, node)]
        return list(dict.fromkeys(edge.removeprefix("^") for edge in edges))

    def controls(self, node: Node, replicas: Sequence[int]) -> list[str]:
        """Control edges of a node's copy that waits for some replicas."""
        edges: dict[str, None] = {}
        for control in node.controls:
            for replica in replicas:
                if control in self._body.placeholders:
                    target = self._resolve(replica, control)
                    if isinstance(target, str):
                        continue  # arguments are there before anything runs
                    edges[f"^{target.node}"] = None
                else:
                    edges |= dict.fromkeys(self.after(replica, control))
        return list(edges)

    def _is_emitted(self, node: str) -> bool:
        return self._emitted is None or bool(self._emitted[node])

    def after(self, replica: int, node: str) -> list[str]:
        """Control edges that make a replica wait for the effect of a node."""
        if node in self._homes and self._is_emitted(node):
            return [f"^{self.name(replica, node)}"]
        if node not in self._writers:
            primary = self._topology.primaries[replica]
            is_live = self._emitted is None or node not in self._merged
            if is_live or primary in (self._emitted or {})[node]:
                return [f"^{self.name(replica, node)}"]
            return self._through(replica, node)
        primary, writer = self._topology.primaries[replica], self._writers[node]
        if writer == primary:
            # Its value must have been read before it changes again.
            new = [f"^{self.new(node, h)}" for h in self.copied(node)]
            return [f"^{self.name(replica, node)}", *new]
        copied = [f"^{self.refresh_name(node, h, primary)}" for h in self.copied(node)]
        if copied:
            return copied
        # Without copies nothing here waits for what the node would have waited for.
        own = [] if writer == ELSEWHERE else [f"^{self.name(replica, node)}"]
        return [*own, *self._through(replica, node)]

    def _through(self, replica: int, node: str) -> list[str]:
        """What a node that a replica does not have would have waited for there.

        The graph optimizer leaves out an edge that another way says already, and that
        way may lead through such a node.
        """
        if (replica, node) not in self._waits:
            inputs, controls = self._inputs[node]
            edges = [
                edge
                for name in (*inputs, *controls)
                if name not in self._body.placeholders
                for edge in self.after(replica, name)
            ]
            self._waits[replica, node] = list(dict.fromkeys(edges))
        return self._waits[replica, node]

    def before(
        self, node: Node, replicas: Sequence[int], handles: Iterable[str]
    ) -> list[str]:
        """Control edges from earlier uses of variables that an owned write changes.

        The node's own edges need not include them: the nodes that order them on the
        writer may not be emitted on other replicas.
        """
        edges: dict[str, None] = {}
        for handle in handles:
            for name in self._earlier.get((node.name, handle), ()):
                for replica in replicas:
                    edges |= dict.fromkeys(self.after(replica, name))
        return list(edges)

    def not_copied(self, node: str) -> list[str]:
        """Handles that an owned write changes and nobody else has a copy of."""
        copied = self.copied(node)
        return [handle for handle in self._written[node] if handle not in copied]

    def received(self, node: str, handle: str) -> Ref | str:
        """The value after an owned write, as it came from the program that writes."""
        assert self._received is not None
        return self._received[node, handle]

    def copied(self, node: str) -> list[str]:
        """Handles that an owned write changes and other primaries have copies of."""
        writer = self._writers[node]
        if self._received is not None:
            return [h for h in self._written[node] if (node, h) in self._received]
        assert writer != ELSEWHERE
        return [
            handle
            for handle in self._written[node]
            if any(
                self._resolve(r, handle) != self._resolve(writer, handle)
                for r in self._replicas
            )
        ]
