"""Data sets as pipelines read them, and the contexts of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

import replicator
from workloads.data import pipeline, sources

if TYPE_CHECKING:
    import pathlib


NUM_JPEGS = 12


@pytest.fixture(scope="session")
def make_config() -> Any:
    """Makes settings of a pipeline of the digits."""

    def make(**changes: Any) -> pipeline.PipelineConfig:
        settings: dict[str, Any] = {
            "per_replica_batch_size": 8,
            "image_size": 32,
            "seed": 5,
            "shuffle_buffer_size": 2048,
            "num_threads": 1,
        }
        return pipeline.PipelineConfig(**{**settings, **changes})

    return make


@pytest.fixture(scope="session")
def contexts() -> Any:
    """Creates the context of each of several input pipelines."""

    def make(num_pipelines: int) -> list[replicator.InputContext]:
        return [
            replicator.InputContext(
                num_input_pipelines=num_pipelines,
                input_pipeline_id=index,
                num_replicas_in_sync=num_pipelines,
            )
            for index in range(num_pipelines)
        ]

    return make


@pytest.fixture(scope="module")
def digits() -> sources.Source:
    """The embedded digits, prepared in the directory of this process."""
    return sources.open_source("digits")


@pytest.fixture(scope="session")
def prepared_photos(data_root: pathlib.Path) -> None:
    """A TFDS set of JPEGs of different sizes, as a user would have prepared it."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> Any:
        for index in range(count):
            shape = (40 + index, 50, 3)
            image = rng.integers(0, 256, shape, np.uint8)
            yield index, {"image": image, "label": index % 3}

    tfds.dataset_builders.store_as_tfds_dataset(
        name="photos",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(
                    shape=(None, None, 3), encoding_format="jpeg"
                ),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
        ),
        split_datasets={
            "train": list(examples(NUM_JPEGS)),
            "validation": list(examples(5)),
        },
        data_dir=data_root / "tfds",
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def photos(prepared_photos: None, data_dirs: pathlib.Path) -> sources.Source:
    del prepared_photos, data_dirs
    return sources.open_source("photos")
