"""Pipelines: what input functions return, and what those of one job have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def to_pipeline(dataset: Any) -> tf.data.Dataset:
    """Returns a dataset of an input function, untuned unless its options say so."""
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"input_fn returned {type(dataset).__name__!r}, but it must return a "
            "tf.data.Dataset whose elements are per-replica batches"
        )
    return _tf_data.without_autotune(dataset)


def spec_signature(spec: Any) -> Hashable:
    """Returns a hashable key of a nest of ``tf.TypeSpec``: its structure and leaves."""
    structure = str(tf.nest.map_structure(lambda _: 0, spec))
    return structure, tuple(tf.nest.flatten(spec, expand_composites=False))


def common_element_spec(specs: Sequence[Any]) -> Any:
    """Returns the nest of ``tf.TypeSpec`` that the elements of all pipelines have."""
    first = specs[0]
    for index, spec in enumerate(specs[1:], start=1):
        try:
            tf.nest.assert_same_structure(first, spec)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"input pipelines 0 and {index} yield different structures: "
                f"{first} and {spec}; every call of input_fn must yield the same "
                "structure"
            ) from error
        # A dimension that differs between pipelines is unknown in the common spec.
        first = tf.nest.map_structure(
            lambda a, b: a.most_specific_common_supertype([b]), first, spec
        )
        if any(leaf is None for leaf in tf.nest.flatten(first)):
            raise ValueError(
                f"input pipelines 0 and {index} yield different types: {specs[0]} and "
                f"{spec}; every call of input_fn must yield the same types"
            )
    return first
