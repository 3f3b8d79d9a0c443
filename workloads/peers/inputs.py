"""What a peer begins with and reads, in NumPy: our weights and batches, then its own.

An export is a folder with ``arrays.npz`` and ``settings.json``. The names of arrays:

- ``weights/<path>``: each variable, such as ``weights/model.stem.kernel``, in the
  layout of TensorFlow;
- ``batches/image``, ``batches/label``: [steps, replicas, examples, ...];
- ``draws/<name>``: [replicas, rows, ...], what every one of the first steps draws;
  absent where a workload draws nothing;
- ``data/image``, ``data/label``: all training examples as they are stored, uint8;
  absent with synthetic data.

Later batches are made as ours of small images (``workloads/data/images.py``): shuffled
within the shard of each process, cropped at random, resized bilinearly, normalised; in
one thread beside the step, two batches ahead.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import queue
import tempfile
import threading
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from workloads.peers import EXPORT_SETTINGS as SETTINGS

Batch = tuple[np.ndarray, np.ndarray]
"""Images [examples, size, size, 3] float32, and labels [examples] int32."""
ARRAYS: Final = "arrays.npz"
NUM_STEPS: Final = 3
"""First steps whose batches and losses are there."""
_AHEAD: Final = 2
_NUM_LEVELS: Final = 255.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What a peer begins with, and the settings that it trains by."""

    # ``workload``, ``config``, ``num_replicas``, ``per_replica_batch_size``,
    # ``num_train_examples``, ``losses`` of the first steps, and ``augmentation`` of the
    # images.
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]  # By name; see the module.

    @classmethod
    def read(cls, folder: Path) -> Export:
        with np.load(folder / ARRAYS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return cls(settings=settings, arrays=arrays)

    def write(self, folder: Path) -> None:
        """Writes an export; the folder is there as a whole, or not at all."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as outer:
            made = Path(outer, "made")
            made.mkdir()
            np.savez(made / ARRAYS, **self.arrays)  # type: ignore[arg-type]
            text = json.dumps(dict(self.settings), indent=1, allow_nan=False)
            (made / SETTINGS).write_text(text + "\n", encoding="utf-8")
            if not folder.is_dir():
                made.replace(folder)

    def part(self, kind: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a kind, such as ``weights``, without that word."""
        first = f"{kind}/"
        return {
            name.removeprefix(first): value
            for name, value in self.arrays.items()
            if name.startswith(first)
        }

    @property
    def config(self) -> dict[str, Any]:
        """Every setting of the workload."""
        config: dict[str, Any] = self.settings["config"]
        return config

    @property
    def num_parameters(self) -> int:
        return sum(
            value.size
            for name, value in self.part("weights").items()
            if not (is_moving(name) or name.endswith(".u"))
        )

    def goyal_rate(self, step: int) -> float:
        """Returns the learning rate of ResNet-50 (``workloads/resnet50/model.py``)."""
        settings, config = self.settings, self.config
        batch = settings["num_replicas"] * settings["per_replica_batch_size"]
        steps_per_epoch = settings["num_train_examples"] / batch
        epochs = config["num_epochs"] / 90 * steps_per_epoch
        target = config["learning_rate_per_256"] * batch / 256
        rate = target * 0.1 ** sum(step >= math.ceil(e * epochs) for e in (30, 60, 80))
        ramp = math.ceil(config["lr_warmup_epochs"] * steps_per_epoch)
        if batch <= 256 or not ramp:  # noqa: PLR2004 - the batch of the published rate
            return float(rate)
        rest = 1.0 - min(step / ramp, 1.0)
        return float(rate - rest * (target - config["learning_rate_per_256"]))

    def linear_decay(self, step: int) -> float:
        """The part of its rate that SN-GAN has (``workloads/sngan/model.py``)."""
        config = self.config
        if config["decay_start"] >= 1:
            return 1.0
        left = (1 - step / config["num_steps"]) / (1 - config["decay_start"])
        return float(min(max(left, 0.0), 1.0))


def is_moving(name: str) -> bool:
    """Whether a variable is a moving statistic of batch norm."""
    return name.endswith((".moving_mean", ".moving_variance"))


def block_paths(names: Container[str], network: str) -> list[str]:
    """Returns the paths of the residual blocks of a network of SN-GAN."""
    paths: list[str] = []
    while f"{network}.blocks.{len(paths)}.conv_1.kernel" in names:
        paths.append(f"{network}.blocks.{len(paths)}")
    return paths


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one of some processes reads; the replicas are divided among them.

    Attributes:
      export: What the processes begin with.
      process: The number of this one.
      num_processes: How many there are.
      seed: Of batches and draws that follow the exported ones.
      is_repeated: Whether every step gets the first batch.
    """

    export: Export
    process: int
    num_processes: int
    seed: int = 0
    is_repeated: bool = False

    def first_batches(self) -> list[Batch]:
        batches = self.export.part("batches")
        own = self._own(batches["label"].shape[1])
        images, labels = batches["image"][:, own], batches["label"][:, own]
        return [
            (image.reshape(-1, *image.shape[2:]), label.reshape(-1))
            for image, label in zip(images, labels, strict=True)
        ]

    def first_draws(self) -> dict[str, np.ndarray]:
        """Returns what each of the first steps draws, by name: its rows."""
        return {
            name: of_all[self._own(len(of_all))].reshape(-1, *of_all.shape[2:])
            for name, of_all in self.export.part("draws").items()
        }

    def _own(self, num_replicas: int) -> slice:
        count = num_replicas // self.num_processes
        return slice(self.process * count, (self.process + 1) * count)

    def batches(self) -> Iterator[Batch]:
        """Yields batches without end: the exported ones, then its own."""
        first = self.first_batches()
        if self.is_repeated or "data/label" not in self.export.arrays:
            while True:
                yield first[0]
        yield from first
        ahead: queue.Queue[Batch] = queue.Queue(_AHEAD)
        made = self._own_batches(len(first[0][1]))

        def fill() -> None:
            for batch in made:
                ahead.put(batch)

        threading.Thread(target=fill, daemon=True).start()
        while True:
            yield ahead.get()

    def _own_batches(self, num_rows: int) -> Iterator[Batch]:
        """Yields shuffled and augmented batches of the shard of a process."""
        augmentation = self.export.settings["augmentation"]
        data = self.export.part("data")
        total, count = len(data["label"]), self.num_processes
        shard = np.arange(
            self.process * total // count, (self.process + 1) * total // count
        )
        rng = np.random.default_rng([self.seed, self.process])
        waiting = np.empty(0, shard.dtype)
        while True:
            while len(waiting) < num_rows:
                waiting = np.concatenate([waiting, rng.permutation(shard)])
            rows, waiting = waiting[:num_rows], waiting[num_rows:]
            boxes = random_boxes(num_rows, augmentation, rng)
            image_size = self.export.config["image_size"]
            cropped = crop(data["image"][rows], boxes, image_size)
            labels = data["label"][rows].astype(np.int32)
            yield normalise(cropped, augmentation), labels

    def draws(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields what each step of SN-GAN draws: the exported arrays, then its own."""
        config, first = self.export.config, self.first_draws()
        # The batches have another generator.
        rng = np.random.default_rng([self.seed, self.process, 1])
        for step in itertools.count():
            is_both = step % config["num_discriminator_steps"] == 0
            yield {
                name: values
                if step < NUM_STEPS
                else _drawn(name, values.shape, config, rng)
                for name, values in first.items()
                if is_both or not name.startswith("generator")
            }


def _drawn(
    name: str, shape: tuple[int, ...], config: dict[str, Any], rng: np.random.Generator
) -> np.ndarray:
    """Returns latents, classes, or noise as wide as one level of a pixel."""
    if name.endswith("labels"):
        return rng.integers(config["num_classes"], size=shape, dtype=np.int32)
    if name.endswith("latents"):
        return rng.standard_normal(shape, np.float32)
    return rng.random(shape, np.float32) * np.float32(2 / _NUM_LEVELS)


def random_boxes(
    num_images: int, augmentation: dict[str, Any], rng: np.random.Generator
) -> np.ndarray:
    """Draws crops: y1, x1, y2, x2 for each image, as ``images.random_boxes`` does."""
    draws = rng.random((4, num_images))
    low, high = augmentation["area_range"]
    side = np.sqrt(low + (high - low) * draws[0])
    low, high = (math.log(aspect) for aspect in augmentation["aspect_range"])
    root_aspect = np.exp(0.5 * (low + (high - low) * draws[1]))
    height = np.minimum(side / root_aspect, 1.0)
    width = np.minimum(side * root_aspect, 1.0)
    y1, x1 = draws[2] * (1.0 - height), draws[3] * (1.0 - width)
    return np.stack([y1, x1, y1 + height, x1 + width], axis=1)


def crop(images: np.ndarray, boxes: np.ndarray, image_size: int) -> np.ndarray:
    """Crops and resizes bilinearly, as ``tf.image.crop_and_resize`` does."""
    height, width = images.shape[1:3]
    of_rows = _weights(boxes[:, 0], boxes[:, 2], height, image_size)
    of_columns = _weights(boxes[:, 1], boxes[:, 3], width, image_size)
    rows = np.einsum("nsh,nhwc->nswc", of_rows, images.astype(np.float32))
    cropped: np.ndarray = np.einsum("ntw,nswc->nstc", of_columns, rows)
    return cropped


def _weights(
    first: np.ndarray, last: np.ndarray, size: int, image_size: int
) -> np.ndarray:
    """Returns what each pixel of the result takes of each row or column."""
    steps = np.arange(image_size) / (image_size - 1)
    places = (first[:, None] + (last - first)[:, None] * steps) * (size - 1)
    distance = np.abs(places[:, :, None] - np.arange(size))
    weights: np.ndarray = np.maximum(0.0, 1.0 - distance).astype(np.float32)
    return weights


def normalise(images: np.ndarray, augmentation: dict[str, Any]) -> np.ndarray:
    """Returns images in [0, 255] with zero mean and unit variance per channel."""
    mean = np.asarray(augmentation["mean"], np.float32) * np.float32(_NUM_LEVELS)
    stddev = np.asarray(augmentation["stddev"], np.float32) * np.float32(_NUM_LEVELS)
    normalised: np.ndarray = ((images - mean) / stddev).astype(np.float32)
    return normalised
