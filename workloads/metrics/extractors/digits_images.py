"""The embedded digits as arrays, in the order in which TFDS stores them."""

from __future__ import annotations

import numpy as np

from workloads.data import sources


def load_digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a split of the embedded digits.

    Args:
      split: ``train`` or ``test``.

    Returns:
      [num_examples, 8, 8, 1] uint8 with ink as high values, and [num_examples] int64.
    """
    source = sources.open_source("digits")
    examples = list(source.builder.as_dataset(split=split).as_numpy_iterator())
    images = np.stack([example["image"] for example in examples])
    return images, np.array([example["label"] for example in examples], np.int64)
