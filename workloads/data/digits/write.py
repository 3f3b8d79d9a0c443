"""Writes the digits as TFRecords: ``python -m workloads.data.digits.write DIRECTORY``.

Runs in a separate process: writing runs TensorFlow ops, after which the calling process
could not create virtual devices.
"""

from __future__ import annotations

import sys

import tensorflow_datasets as tfds

from workloads.data.digits import digits_dataset_builder

if __name__ == "__main__":
    tfds.disable_progress_bar()
    digits_dataset_builder.Builder(data_dir=sys.argv[1]).download_and_prepare()
