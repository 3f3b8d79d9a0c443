"""What a peer begins with: our weights and first batches, bit by bit.

A folder with ``arrays.npz`` and ``settings.json``. The names of arrays:

- ``weights/<path>``: each variable, such as ``weights/model.stem.kernel``, in the
  layout of TensorFlow;
- ``batches/image``, ``batches/label``: [steps, replicas, examples, ...];
- ``draws/<name>``: [replicas, rows, ...], what every one of the first steps draws;
  absent where a workload draws nothing;
- ``data/image``, ``data/label``: all training examples as they are stored, uint8;
  absent with synthetic data.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workloads.peers.catalog import EXPORT_SETTINGS as SETTINGS

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

ARRAYS: Final = "arrays.npz"
NUM_STEPS: Final = 3
"""First steps whose batches and losses are there."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What a peer begins with."""

    # ``workload``, ``config`` (every setting), ``num_replicas``,
    # ``per_replica_batch_size``, ``num_train_examples``, ``losses`` of the first steps,
    # and ``augmentation`` of the images.
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]  # By name; see the module.

    def part(self, kind: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a kind, such as ``weights``, without that word."""
        first = f"{kind}/"
        return {
            name.removeprefix(first): value
            for name, value in self.arrays.items()
            if name.startswith(first)
        }


def block_paths(names: Container[str], network: str) -> list[str]:
    """Returns the paths of the residual blocks of a network of SN-GAN."""
    paths: list[str] = []
    while f"{network}.blocks.{len(paths)}.conv_1.kernel" in names:
        paths.append(f"{network}.blocks.{len(paths)}")
    return paths


def write(folder: Path, export: Export) -> None:
    """Writes an export; the folder is there as a whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        np.savez(made / ARRAYS, **export.arrays)  # type: ignore[arg-type]
        text = json.dumps(dict(export.settings), indent=1, allow_nan=False)
        (made / SETTINGS).write_text(text + "\n", encoding="utf-8")
        if not folder.is_dir():
            made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of an export."""
    found: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    return found


def read(folder: Path) -> Export:
    """Returns an export."""
    with np.load(folder / ARRAYS, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return Export(settings=read_settings(folder), arrays=arrays)


def num_parameters(export: Export) -> int:
    """Returns how many numbers are trained."""
    kept = ("moving_mean", "moving_variance", "u")
    return sum(
        value.size
        for name, value in export.part("weights").items()
        if name.rpartition(".")[2] not in kept
    )
