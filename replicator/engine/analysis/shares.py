"""Shares: what the owner of a variable sends to the programs of other workers.

With a sharded update over worker processes, one program updates a variable. The others
receive its new value before anything there reads it again. Small variables of one owner
are sent together. These transfers are part of the chain of the step's collectives,
which is the same in every program: each comes before the first collective that depends
on the update, or at the end.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from replicator.collectives import buckets
from replicator.engine.analysis.plan import WORKER_BUCKET_BYTES
from replicator.engine.graph.body import before_of
from replicator.engine.graph.liveness import ELSEWHERE
from replicator.errors import OptimizerOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import tensorflow as tf

    from replicator.collectives.call import Collective
    from replicator.engine.graph.body import Body
    from replicator.engine.graph.liveness import Liveness


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The new value of one variable after one update."""

    node: str  # The node that updates.
    handle: str  # The placeholder of the variable's handle.
    source: int  # Program that updates.
    dtype: tf.DType  # Type of the variable.
    shape: tf.TensorShape  # Its static shape.

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return int(self.shape.num_elements() * self.dtype.size)


def schedule(
    body: Body, collectives: Sequence[Collective], shares: Sequence[Share]
) -> dict[int, list[Share]]:
    """Finds the place of each share in the order of a step's collectives."""
    last = len(collectives)
    first = {name: c.index for c in reversed(collectives) for name in c.read}
    for node in reversed(body.nodes):
        index = first.get(node.name, last)
        for name in before_of(node):
            first[name] = min(first.get(name, last), index)
    places: dict[int, list[Share]] = {}
    for share in shares:
        places.setdefault(first.get(share.node, last), []).append(share)
    return places


def levels(body: Body, shares: Iterable[Share]) -> dict[str, int]:
    """How many updates in a row lead to each node.

    Shares that are sent together must not wait for later ones, so only updates of
    one level do.
    """
    updates = {share.node for share in shares}
    found: dict[str, int] = {}
    for node in body.nodes:
        level = max((found.get(name, 0) for name in before_of(node)), default=0)
        found[node.name] = level + (node.name in updates)
    return found


def group(shares: Iterable[Share], level: Mapping[str, int]) -> list[list[Share]]:
    """Puts shares of one level, source and type into buckets, by level."""
    found: list[list[Share]] = []
    in_order = sorted(shares, key=lambda share: level[share.node])
    for _, same_level in itertools.groupby(in_order, lambda share: level[share.node]):
        members = list(same_level)
        filled = buckets.fill(
            [(share.source, share.dtype) for share in members],
            [share.num_bytes for share in members],
            limit=WORKER_BUCKET_BYTES,
        )
        found += [[members[place] for place in bucket] for bucket in filled]
    return found


def check(
    body: Body,
    live: Liveness,
    slots: Mapping[str, int],
    program_id: int,
    names: Mapping[str, str],
) -> None:
    """Rejects steps that need state in one program that exists in another one only."""
    for node in body.nodes:
        handles = [ref.node for ref in node.inputs if ref.node in slots]
        if len({slots[handle] for handle in handles}) > 1:
            raise OptimizerOptionError(
                "sharded_update distributes the optimizer's state over several "
                f"workers, but one {node.op} node of the step uses the state of many "
                "variables: an update in a branch (such as Keras' "
                "gradient_accumulation_steps) is computed on one worker; use "
                "sharded_update=False, or an optimizer that updates in every call"
            )
        where = (
            {live.writers[node.name]}
            if node.name in live.writers
            else set(live.emitted.get(node.name, (0, ELSEWHERE)))
        )
        for handle in handles:
            others = where - {ELSEWHERE}
            if slots[handle] == program_id:
                others = where & {ELSEWHERE}
            if others:
                raise OptimizerOptionError(
                    f"sharded_update keeps {names[handle]!r} on worker "
                    f"{slots[handle]} only, but the step uses it (in {node.op}) on "
                    "others; use the optimizer's state in apply_gradients() only, or "
                    "use sharded_update=False"
                )
