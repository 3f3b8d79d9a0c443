"""Which variables may differ between replicas, read off the program.

docs/replicator/training.md: a variable is mirrored if everything that is written to it
is provably the same on every replica. This module finds a set that is surely large
enough (whatever depends on a batch, the replica id or a replica-local variable, and
every gradient of such things); variables outside it must be mirrored, and what runs
show to differ must not be. Between the two a prover may do better or worse.
"""

from __future__ import annotations

from fuzzing import structure, syntax
from fuzzing.collectives import COLLECTIVES


def may_differ(program):
    """Names of variables whose copies may come to differ, or are declared to."""
    local = {v.name for v in program.variables if v.synchronization == "ON_READ"}
    while True:
        found = _Pass(local)
        found.varying |= {name for name, _ in program.inputs}
        found.run(program.statements, outer=False)
        if found.local == local:
            return local
        local = found.local


class _Pass:
    """One walk: finds values that vary, and variables that they reach."""

    def __init__(self, local):
        self.local = set(local)
        self.varying = set()

    def run(self, statements, *, outer):
        """Walks statements; ``outer``: whether the control flow around them varies."""
        for statement in statements:
            if isinstance(statement, syntax.Differentiate):
                self._differentiate(statement, outer=outer)
                continue
            varies = outer or self._varies(statement)
            # A call is one operation of the graph: what goes into it varies as a whole.
            for block in structure.blocks(statement):
                if varies:
                    self._bind(statement)
                self.run(block.statements, outer=varies)
            if varies:
                self.local |= structure.written(statement)
            # What replicas joined is the same on all of them, or never is.
            if isinstance(statement, syntax.Communicate):
                varies = not COLLECTIVES[statement.kind].is_same
            if varies and not isinstance(statement, syntax.Map):
                self.varying |= set(structure.results(statement))

    def _varies(self, statement):
        asks_who = any(
            isinstance(part, syntax.ReplicaId) for part in structure.inside(statement)
        )
        reads = structure.read(statement) & self.local
        return bool(asks_who or reads or structure.used(statement) & self.varying)

    def _bind(self, statement):
        if isinstance(statement, syntax.Loop):
            self.varying.add(statement.carried)
        elif isinstance(statement, (syntax.Call, syntax.Map, syntax.Vectorize)):
            self.varying.add(statement.parameter)

    def _differentiate(self, statement, *, outer):
        varies = outer or self._varies(statement)
        self.run(statement.body.statements, outer=outer)
        # Its body may define more that varies, even from a replica id.
        if varies or self._varies(statement):
            self.varying |= set(statement.results)
