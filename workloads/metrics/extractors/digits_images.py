"""The embedded digits as arrays, in the order in which TFDS stores them."""

from __future__ import annotations

import numpy as np

from workloads.data import sources


def load_digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a split of the embedded digits."""
    source = sources.open_source("digits")
    examples = list(source.builder.as_dataset(split=split).as_numpy_iterator())
    images = np.stack([example["image"] for example in examples])
    return images, np.array([example["label"] for example in examples], np.int64)
