"""Writes the text as TFRecords: ``python -m ... DIRECTORY``; see ``embedded.py``."""

from __future__ import annotations

import sys

import tensorflow_datasets as tfds

from workloads.data.tensorflow_source import tensorflow_source_dataset_builder

if __name__ == "__main__":
    tfds.disable_progress_bar()
    builder = tensorflow_source_dataset_builder.Builder(data_dir=sys.argv[1])
    builder.download_and_prepare()
