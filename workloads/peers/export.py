"""Writes what a peer begins with: weights, batches, and our losses.

    python -m workloads.peers.export <folder> <request as JSON>

The request has the arguments of ``make``. The losses are those of ``in_graph`` with as
many replicas, each normalizing by its own batch, in the step that is measured.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import replicator
from workloads import catalog
from workloads.controls import build_control
from workloads.data import images, sources
from workloads.peers.catalog import REFERENCE
from workloads.peers.inputs import NUM_STEPS, Export

SEED = 1
"""Of weights and batches: the same for all repetitions of a study, which differ
in what follows the first steps."""


def make(
    *,
    workload: str,
    preset: str,
    options: Mapping[str, Any],
    data: str,
    per_replica_batch_size: int,
    num_replicas: int,
) -> Export:
    """Trains the first steps, and returns what they began with and their losses."""
    info = catalog.WORKLOADS[workload]
    config = info.make_config(preset, options)
    program = build_control(
        info,
        replicator.create(REFERENCE, num_replicas=num_replicas),
        control="match",
        preset=preset,
        data=data,
        per_replica_batch_size=per_replica_batch_size,
        seed=SEED,
        options=options,
    )
    arrays = {
        f"weights/{name}": np.array(value)
        for name, value in program.training.weights().items()
    }
    for name, value in program.training.matched_draws().items():
        arrays[f"draws/{name}"] = value.reshape(num_replicas, -1, *value.shape[1:])
    losses = [program.run() for _ in range(NUM_STEPS)]
    # Its batches are shares of global ones, which the seed determines.
    whole = program.training.input_fn(replicator.InputContext()).take(NUM_STEPS)
    batches = list(whole.as_numpy_iterator())
    for name in ("image", "label"):
        stacked = np.stack([batch[name] for batch in batches])
        arrays[f"batches/{name}"] = stacked.reshape(
            NUM_STEPS, num_replicas, per_replica_batch_size, *stacked.shape[2:]
        )
    num_train_examples = 0
    if program.source is not None:
        arrays |= _examples(program.source)
        num_train_examples = program.source.num_train_examples
    return Export(
        settings={
            "workload": workload,
            "config": dataclasses.asdict(config),
            "num_replicas": num_replicas,
            "per_replica_batch_size": per_replica_batch_size,
            # As ``resnet50/train.py`` assumes of synthetic data.
            "num_train_examples": num_train_examples or 1_281_167,
            "augmentation": dataclasses.asdict(program.training.images.augmentation),
            "losses": losses,
        },
        arrays=arrays,
    )


def _examples(source: sources.Examples) -> dict[str, np.ndarray]:
    examples = list(source.read(sources.TRAIN_SPLIT))
    pixels = [
        images.decoded(example["image"], source.image_shape) for example in examples
    ]
    labels = [int(example["label"]) for example in examples]
    return {"data/image": np.stack(pixels), "data/label": np.array(labels, np.int32)}


def main(argv: Sequence[str]) -> None:
    folder, request = argv
    make(**json.loads(request)).write(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
