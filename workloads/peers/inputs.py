"""The batches of a peer, in NumPy: first the exported ones, then its own.

The pipeline does what ours does to small images (``workloads/data/pipeline.py``):
shuffle within the shard of each process, crop at random, resize bilinearly, normalise;
in one thread beside the step, two batches ahead.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workloads.peers.exported import NUM_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.peers.exported import Export

Batch = tuple[np.ndarray, np.ndarray]
"""Images [examples, size, size, 3] float32, and labels [examples] int32."""
_AHEAD: Final = 2
_NUM_LEVELS: Final = 255.0


def first_batches(export: Export, process: int, num_processes: int) -> list[Batch]:
    """Returns the exported batches of a process, one per step."""
    batches = export.part("batches")
    share = batches["label"].shape[1] // num_processes
    own = slice(process * share, (process + 1) * share)
    images, labels = batches["image"][:, own], batches["label"][:, own]
    return [
        (image.reshape(-1, *image.shape[2:]), label.reshape(-1))
        for image, label in zip(images, labels, strict=True)
    ]


def first_draws(
    export: Export, process: int, num_processes: int
) -> dict[str, np.ndarray]:
    """Returns what each of the first steps of a process draws, by name: its rows."""
    found = {}
    for name, of_all in export.part("draws").items():
        share = len(of_all) // num_processes
        own = of_all[process * share : (process + 1) * share]
        found[name] = own.reshape(-1, *own.shape[2:])
    return found


def batches(
    export: Export,
    *,
    process: int,
    num_processes: int,
    seed: int,
    is_repeated: bool = False,
) -> Iterator[Batch]:
    """Yields batches without end: the exported ones, then its own."""
    first = first_batches(export, process, num_processes)
    if is_repeated or "data/label" not in export.arrays:
        while True:
            yield first[0]
    yield from first
    ahead: queue.Queue[Batch] = queue.Queue(_AHEAD)
    made = _own_batches(export, process, num_processes, seed, num_rows=len(first[0][1]))

    def fill() -> None:
        for batch in made:
            ahead.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ahead.get()


def _own_batches(
    export: Export, process: int, num_processes: int, seed: int, *, num_rows: int
) -> Iterator[Batch]:
    """Yields shuffled and augmented batches of the shard of a process."""
    data, config = export.part("data"), export.settings["config"]
    total = len(data["label"])
    shard = np.arange(
        process * total // num_processes, (process + 1) * total // num_processes
    )
    rng = np.random.default_rng([seed, process])
    waiting = np.empty(0, shard.dtype)
    while True:
        while len(waiting) < num_rows:
            waiting = np.concatenate([waiting, rng.permutation(shard)])
        rows, waiting = waiting[:num_rows], waiting[num_rows:]
        boxes = random_boxes(num_rows, export.settings["augmentation"], rng)
        cropped = crop(data["image"][rows], boxes, config["image_size"])
        yield (
            normalise(cropped, export.settings["augmentation"]),
            data["label"][rows].astype(np.int32),
        )


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
    found: np.ndarray = np.einsum("ntw,nswc->nstc", of_columns, rows)
    return found


def _weights(
    first: np.ndarray, last: np.ndarray, size: int, image_size: int
) -> np.ndarray:
    """Returns what each pixel of the result takes of each row or column."""
    steps = np.arange(image_size) / (image_size - 1)
    places = (first[:, None] + (last - first)[:, None] * steps) * (size - 1)
    distance = np.abs(places[:, :, None] - np.arange(size))
    found: np.ndarray = np.maximum(0.0, 1.0 - distance).astype(np.float32)
    return found


def normalise(images: np.ndarray, augmentation: dict[str, Any]) -> np.ndarray:
    """Returns images in [0, 255] with zero mean and unit variance per channel."""
    mean = np.asarray(augmentation["mean"], np.float32) * np.float32(_NUM_LEVELS)
    stddev = np.asarray(augmentation["stddev"], np.float32) * np.float32(_NUM_LEVELS)
    found: np.ndarray = ((images - mean) / stddev).astype(np.float32)
    return found


def goyal_rate(export: Export, step: int) -> float:
    """Returns the learning rate of ResNet-50 (``workloads/resnet50/model.py``)."""
    settings, config = export.settings, export.settings["config"]
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


def sngan_draws(
    export: Export, *, process: int, num_processes: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields what each step of SN-GAN draws: the exported arrays, then its own.

    What the generator needs is there in the steps that update it.
    """
    config, first = (
        export.settings["config"],
        first_draws(export, process, num_processes),
    )
    rng = np.random.default_rng([seed, process, 1])  # the batches have another
    for step in itertools.count():
        is_both = step % config["num_discriminator_steps"] == 0
        yield {
            name: of if step < NUM_STEPS else _drawn(name, of.shape, config, rng)
            for name, of in first.items()
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


def linear_decay(config: dict[str, Any], step: int, num_steps: int) -> float:
    """The part of its rate that SN-GAN has (``workloads/sngan/networks.py``)."""
    if config["decay_start"] >= 1:
        return 1.0
    left = (1 - step / num_steps) / (1 - config["decay_start"])
    return float(min(max(left, 0.0), 1.0))


def tuning(words: list[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """How a program is tuned: its defaults, or other values for a comparison."""
    found = dict(defaults)
    for word in words:
        name, _, value = word.partition("=")
        kind = type(found[name])
        found[name] = bool(int(value)) if kind is bool else kind(value)
    return found
