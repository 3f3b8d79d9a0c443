"""The compiled model that ``fit`` trains, and its multiply-adds."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any

import keras

from workloads.common.training import dtype_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .study import KerasFitConfig


def make(config: KerasFitConfig) -> keras.Model:
    """Makes and compiles the model, in the scope of a replicator."""
    with dtype_policy(config.compute_dtype):
        model = _application(config) if config.function is None else _own(config)
    synchronize(model, batch_norm=config.batch_norm)
    return model


def synchronize(model: keras.Model, *, batch_norm: str) -> None:
    """Sets whose batch the layers of a model normalize by."""
    for layer in layers_of(model):
        if hasattr(layer, "synchronized"):
            layer.synchronized = batch_norm != "local"


def _application(config: KerasFitConfig) -> keras.Model:
    """A network of ``keras.applications``, compiled as in Keras' guides."""
    size = config.image_size
    model: keras.Model = getattr(keras.applications, config.model)(
        weights=None,
        input_shape=(size, size, 3),
        classes=config.num_classes,
        classifier_activation=None,
    )
    model.compile(
        keras.optimizers.SGD(config.learning_rate, momentum=config.momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def made_by(function: Callable[[], Any], what: str) -> keras.Model:
    """Returns what a function of the user's makes, if it is a compiled model."""
    model = function()
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            f"{what} returned {type(model).__name__}, which is not a compiled model; "
            "call model.compile(...) in it, and return the model"
        )
    return model


def _own(config: KerasFitConfig) -> keras.Model:
    assert config.function is not None
    path, name = config.function
    function = getattr(_imported(path), name)
    model = made_by(function, f"option model={config.model!r}: the function")
    expected = (config.image_size, config.image_size, 3)
    shape = getattr(model, "input_shape", None)
    if shape is not None and tuple(shape)[1:] != expected:
        raise ValueError(
            f"option model={config.model!r}: the model takes {shape}, but images are "
            f"{expected}; set option image_size, or change the model"
        )
    return model


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layers_of(model: Any) -> Iterator[Any]:
    """All layers of a model, also of models within it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from layers_of(layer)


# Norms, activations, pooling and the update are left out, as is usual for model FLOPs
# (PaLM, Chowdhery et al. 2022, appendix B).

_KERNELS = (
    keras.layers.Conv2D,
    keras.layers.Dense,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
)
_NO_PRODUCTS = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Rescaling,
    keras.Model,
)


def training_flops(model: Any) -> int | None:
    """Returns the floating-point operations of one example in a training step."""
    products = []
    for layer in layers_of(model):
        if isinstance(layer, _KERNELS):
            try:
                output = layer.output.shape
            except AttributeError:  # a model of one's own class, without a graph
                return None
            products.append(
                sum(
                    math.prod(weight.shape) * math.prod(output[1:-1])
                    for weight in layer.trainable_weights
                    if "kernel" in weight.name
                )
            )
        elif layer.weights and not isinstance(layer, _NO_PRODUCTS):
            return None
    return 2 * (3 * sum(products) - products[0]) if products else None
