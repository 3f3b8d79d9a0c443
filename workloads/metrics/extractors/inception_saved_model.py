"""Inception v3 from a SavedModel, such as that of TF-GAN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.metrics.extractors.inception_network import (
    PREPARATION_2015,
    InceptionExtractor,
    prepare_2015,
)

if TYPE_CHECKING:
    import pathlib

_POOL, _LOGITS = "pool_3", "logits"
_SIGNATURE = "serving_default"


def open_saved_model(path: pathlib.Path) -> InceptionExtractor:
    """Opens a SavedModel that maps images in [-1, 1] to ``pool_3`` and ``logits``.

    Raises:
      ValueError: Not a SavedModel, or without these two outputs.
    """
    try:
        module = tf.saved_model.load(str(path))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{str(path)!r} is not a SavedModel ({reason}): point to the folder that "
            "holds saved_model.pb"
        ) from error
    is_callable = callable(module)
    if not is_callable and _SIGNATURE not in module.signatures:
        raise ValueError(
            f"the SavedModel {str(path)!r} can neither be called nor has it the "
            f"signature {_SIGNATURE!r}: export it with one of the two"
        )

    def network(images: tf.Tensor) -> tuple[Any, Any]:
        # The module owns the variables: it must live as long as this function.
        outputs = (
            module(images) if is_callable else module.signatures[_SIGNATURE](images)
        )
        names = sorted(outputs) if isinstance(outputs, dict) else []
        if not {_POOL, _LOGITS} <= set(names):
            raise ValueError(
                f"the SavedModel {str(path)!r} gives {names or type(outputs).__name__}"
                f": Inception gives {_POOL!r} and {_LOGITS!r}"
            )
        return outputs[_POOL], outputs[_LOGITS]

    return InceptionExtractor(
        path, prepare=prepare_2015, preparation=PREPARATION_2015, network=network
    )
