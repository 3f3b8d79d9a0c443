"""The compiled model that ``fit`` trains: of ``keras.applications``, or of a user's."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workloads.keras_fit.config import KerasFitConfig


def make(config: KerasFitConfig, *, is_matched: bool) -> keras.Model:
    """Makes and compiles the model, in the scope of a replicator."""
    with policy(config.compute_dtype):
        model = _application(config) if config.function is None else _own(config)
    adapt(model, batch_norm=config.batch_norm, is_matched=is_matched)
    return model


def adapt(model: keras.Model, *, batch_norm: str, is_matched: bool) -> None:
    """Sets in the layers of a model what an option says, or matching needs."""
    for layer in layers_of(model):
        if hasattr(layer, "synchronized"):
            layer.synchronized = batch_norm != "local"
        if is_matched and isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0


@contextlib.contextmanager
def policy(compute_dtype: str) -> Iterator[None]:
    """Makes a number type that of the layers that are made in the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(compute_dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


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


def _own(config: KerasFitConfig) -> keras.Model:
    assert config.function is not None
    path, name = config.function
    model = getattr(_imported(path), name)()
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            f"option model={config.model!r}: the function returned "
            f"{type(model).__name__}, which is not a compiled model; call "
            "model.compile(...) in it, and return the model"
        )
    expected = (config.image_size, config.image_size, 3)
    found = getattr(model, "input_shape", None)
    if found is not None and tuple(found)[1:] != expected:
        raise ValueError(
            f"option model={config.model!r}: the model takes {found}, but images are "
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
