"""Opens Inception v3 from weights given by the user."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.metrics.extractors.base import FeatureExtractor

_KINDS = (
    "a Keras InceptionV3 file (.h5, .keras, .weights.h5), the frozen 2015 graph (.pb), "
    "or a SavedModel folder such as TF-GAN's"
)


def open_inception(path: str | pathlib.Path) -> FeatureExtractor:
    """Opens Inception v3; nothing is downloaded.

    Scores depend on the weights: published FIDs and Inception scores use those of 2015
    (the frozen graph, TF-GAN's SavedModel); those of Keras give different numbers. The
    digest of the file is part of every score.

    Args:
      path: A file or a folder; its kind follows from its name.

    Raises:
      ValueError: The path does not exist, is of another kind, or does not hold
        Inception v3 with 2,048 features and class logits.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise ValueError(
            f"inception weights {str(path)!r} do not exist: point to {_KINDS}"
        )
    if path.is_dir():
        from workloads.metrics.extractors.inception_saved_model import open_saved_model

        return open_saved_model(path)
    if path.suffix in (".h5", ".keras"):
        from workloads.metrics.extractors.inception_keras import open_keras

        return open_keras(path)
    if path.suffix == ".pb":
        from workloads.metrics.extractors.inception_graph import open_graph

        return open_graph(path)
    raise ValueError(
        f"inception weights {str(path)!r} are of an unknown kind: point to {_KINDS}"
    )
