"""Trains a Keras model of the user's on the user's data; see ``own_model.py``."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads import device_inputs
from workloads.common import precision
from workloads.keras_fit import models
from workloads.keras_fit.loop_program import KerasLoopProgram
from workloads.keras_fit.own_model import AS_WRITTEN, make_config
from workloads.spec import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import replicator
    from workloads.keras_fit.own_model import OwnModelConfig
    from workloads.spec import QualityMetric

_PREFETCHED_STEPS = 2
_PAIR = 2


class OwnModelProgram(KerasLoopProgram):
    """A model and data that two functions of the user's make."""

    def __init__(
        self,
        repl: replicator.Replicator,
        config: OwnModelConfig,
        *,
        data: str,
        per_replica_batch_size: int,
    ) -> None:
        super().__init__(repl, per_replica_batch_size=per_replica_batch_size)
        self._is_fit = config.loop == "fit"
        self._data = data
        self._inputs = device_inputs.make_iterator(
            repl, self._input_fn, self._loop_input_mode()
        )
        self._take(repl, lambda: self._made(config))

    def _made(self, config: OwnModelConfig) -> keras.Model:
        is_written = config.compute_dtype == AS_WRITTEN
        with (
            contextlib.nullcontext()
            if is_written
            else models.policy(config.compute_dtype)
        ):
            model = _function(config.model)()
        if not isinstance(model, keras.Model) or not model.compiled:
            raise ValueError(
                f"{config.model} returned {type(model).__name__}, which is not a "
                "compiled model; call model.compile(...) in it, and return the model"
            )
        models.adapt(model, batch_norm=config.batch_norm, is_matched=self.is_matched)
        return model

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        dataset = _function(self._data)()
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(  # noqa: TRY004 (of the user's function, not of a call)
                f"{self._data} returned {type(dataset).__name__}, which is not a "
                "tf.data.Dataset of single (inputs, targets)"
            )
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) != _PAIR:
            raise ValueError(
                f"{self._data} returned a dataset of {spec}; its elements have to be "
                "pairs (inputs, targets) of one example"
            )
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
        return (
            dataset.repeat()
            .batch(self.pipeline_batch_size, drop_remainder=True)
            .prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
        )

    @staticmethod
    def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        x, y = batch
        return x, y

    def _keep(self, outputs: dict[str, Any], num_steps: int) -> Callable[[], float]:
        self._num_steps += num_steps
        return self._reader_of(outputs["loss"])

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Returns nothing: what was learned is the user's to measure."""
        return ()


class OwnModelWorkload(Workload):
    """Any model of the user's; the options name it."""

    name = "keras model"
    version = "1"
    example_unit = "examples"

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> OwnModelProgram:
        """Builds the program on ``replicator``; see ``Workload.build``."""
        del seed  # that of Keras is set before
        config = make_config(preset, options)
        precision.set_tf32(replicator, is_on=config.tf32)
        return OwnModelProgram(
            replicator,
            config,
            data=data,
            per_replica_batch_size=per_replica_batch_size,
        )


def _function(reference: str) -> Callable[[], Any]:
    module, _, name = reference.partition(":")
    function: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return function


WORKLOAD = OwnModelWorkload()
