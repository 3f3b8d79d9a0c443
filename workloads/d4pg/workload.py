"""D4PG as a workload of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.catalog import SYNTHETIC, CatalogWorkload
from workloads.common import training
from workloads.d4pg.environment import control
from workloads.d4pg.program import D4PGProgram

if TYPE_CHECKING:
    from collections.abc import Mapping

    import replicator


class D4PGWorkload(CatalogWorkload):
    """The catalogue's ``d4pg``."""

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> D4PGProgram:
        """Builds D4PG on ``replicator``; see ``Workload.build``."""
        config = self.make_config(preset, options)
        training.set_tf32(replicator, is_on=config.tf32)
        if data != SYNTHETIC:
            control.check(data)
        return D4PGProgram(
            replicator,
            config,
            name=None if data == SYNTHETIC else data,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )


WORKLOAD = D4PGWorkload("d4pg")
