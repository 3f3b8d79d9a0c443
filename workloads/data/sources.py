"""Opens data sets: prepares the embedded one, finds the others, reads all with TFDS."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import tensorflow_datasets as tfds

from workloads.data import builders, names

if TYPE_CHECKING:
    import pathlib

TRAIN_SPLIT = names.TRAIN_SPLIT
# The first that exists is used; the test labels of ImageNet are not public.
_EVALUATION_SPLITS = names.EVALUATION_SPLITS

# The message of the pipeline; see ``reading._check_label``.
_OUTSIDE = re.compile(r"label outside the classes: (?P<label>-?\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """A prepared data set."""

    name: str  # The name it was opened by.
    builder: Any  # The TFDS builder that reads it.
    num_train_examples: int  # Examples of the training split.
    evaluation_split: str  # Name of the held-out split.
    num_evaluation_examples: int  # Examples of the held-out split.
    smallest_feature: str  # What is read of an example whose id is looked at.

    def explain(self, error: Exception) -> str | None:  # noqa: ARG002 - of subclasses
        """Describes how the data made a step fail, in one line; None otherwise."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source(Examples):
    """A prepared data set of labelled images."""

    num_classes: int  # Distinct labels.
    smallest_feature: str = "label"

    @property
    def encoding(self) -> str | None:
        """How images are stored: ``png``, ``jpeg``, or None if that varies."""
        image = self.builder.info.features["image"]
        encoding: str | None = image._encoding_format  # noqa: SLF001 - no public reader
        return encoding

    @property
    def image_shape(self) -> tuple[int | None, ...]:
        """Stored height, width and channels; None where images differ."""
        return tuple(self.builder.info.features["image"].shape)

    def explain(self, error: Exception) -> str | None:
        """Describes in one line how the data made a step fail; see ``Examples``."""
        outside = _OUTSIDE.search(str(error))
        if outside:
            return (
                f"data {self.name!r} has an example with label {outside['label']}, "
                f"which is outside its {self.num_classes} classes (0 to "
                f"{self.num_classes - 1}): fix its labels, or use another data set"
            )
        find = getattr(self.builder, "find_unreadable", None)
        path = find() if find is not None else None
        if path is None:
            return None
        return (
            f"data {self.name!r}: file {path!r} cannot be decoded as an image: replace "
            "or remove it"
        )


def open_source(name: str) -> Source:
    """Opens a data set by name; the embedded digits are prepared on first use."""
    builder = _open_builder(name)
    splits = builder.info.splits
    held_out = next((split for split in _EVALUATION_SPLITS if split in splits), None)
    if TRAIN_SPLIT not in splits or held_out is None:
        raise ValueError(
            f"data {name!r} has the splits {sorted(splits)}, but training needs "
            f"{TRAIN_SPLIT!r} and evaluation one of {list(_EVALUATION_SPLITS)}"
        )
    return Source(
        name=name,
        builder=builder,
        num_classes=builder.info.features["label"].num_classes,
        num_train_examples=splits[TRAIN_SPLIT].num_examples,
        evaluation_split=held_out,
        num_evaluation_examples=splits[held_out].num_examples,
    )


def _open_builder(name: str) -> Any:
    if names.is_folder(name):
        return builders.FolderBuilder(names.read_folder(name))
    path = prepare_digits() if name == names.DIGITS else names.find_prepared(name)
    return tfds.builder_from_directory(path)


def prepare_digits() -> pathlib.Path:
    """Writes the embedded digits as TFRecords unless they already exist."""
    return builders.prepare(builders.Digits)
