"""The file ``client.json``: what a trial asks of a program that connects by the client.

``docs/client_protocol.md`` describes it; ``scaling_client`` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.client.scaling_client import TRIAL_FILE
from results.records.client.messages import TrialFile
from results.store import atomic

if TYPE_CHECKING:
    from pathlib import Path

    from results.records.models import TrialSpec


def write(trial_dir: Path, spec: TrialSpec) -> None:
    """Writes the file of a trial of such a program into its directory."""
    assert spec.program is not None
    asked = TrialFile(
        num_replicas=spec.num_replicas,
        per_replica_batch_size=spec.per_replica_batch_size,
        global_batch_size=spec.global_batch_size,
        unit=spec.program.unit,
        seed=spec.seed,
        num_warmup_steps=spec.num_warmup_steps,
        num_measured_steps=spec.num_measured_steps,
        control=spec.control,
        is_evaluated=spec.is_evaluated,
    )
    atomic.write_text(trial_dir / TRIAL_FILE, asked.model_dump_json() + "\n")
