"""A Keras model of anybody's as a workload: two functions, and no further file.

    from workloads import keras_workload

    def model(): ...    # returns a compiled model
    def data(): ...     # returns a tf.data.Dataset of single (inputs, targets)

    WORKLOAD = keras_workload("mine", model, data)

The planner imports that module and this one, so neither imports TensorFlow: the two
functions do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from workloads import spec
from workloads.keras_fit import study
from workloads.spec import limited


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnModelConfig(spec.TrainingConfig):
    """How a model of the user's is trained."""

    model: str = ""  # ``MODULE:FUNCTION``, a function that returns the compiled model.
    # ``run``: a loop over ``repl.run`` with the model's own optimizer, wrapped, on
    # every backend; ``fit``: that of Keras, on backends that have it.
    loop: str = limited("run", choices=(*reversed(study.LOOPS),))
    # Of layers that name none; ``as_written`` leaves the policy alone.
    compute_dtype: str = limited(
        study.AS_WRITTEN, choices=(study.AS_WRITTEN, *study.COMPUTE_DTYPES)
    )
    # ``cross_replica`` sets ``synchronized`` of Keras' layers.
    batch_norm: str = limited("local", choices=spec.STATISTICS)

    def __post_init__(self) -> None:
        # Of a class with slots, super() finds another class.
        spec.TrainingConfig.__post_init__(self)
        study.check_jit_of_fit(self.jit)


def keras_workload(
    name: str,
    model: Callable[[], Any],
    data: Callable[[], Any],
    *,
    per_replica_batch_size: int = 32,
    num_warmup_steps: int = 3,
    num_measured_steps: int = 30,
    example_unit: str = "examples",
    version: str = "1",
) -> spec.WorkloadInfo:
    """Returns a workload that trains a compiled Keras model.

    Args:
      name: What reports call it.
      model: A function of a module that returns the compiled model.
      data: Returns a ``tf.data.Dataset`` of single examples, ``(inputs, targets)``. It
        is divided among the pipelines, repeated and batched; its order is the user's.
      per_replica_batch_size: Examples per replica and step, unless you ask for others.
      num_warmup_steps: Steps before the measured window.
      num_measured_steps: Steps of the measured window.
      example_unit: Plural unit of an example, such as ``images``.
      version: Changes whenever the meaning of a measured number changes.

    Raises:
      ValueError: A function cannot be found again by the process of a trial.
    """
    made = reference(data)
    return spec.WorkloadInfo(
        name=name,
        version=version,
        example_unit=example_unit,
        description="a Keras model of the user's",
        train="workloads.keras_fit.loop_program",
        program="workloads.keras_fit.loop_program:KerasProgram",
        presets=(
            spec.PresetInfo(
                name="own",
                description="as it is written",
                data=made,
                per_replica_batch_size=per_replica_batch_size,
                num_warmup_steps=num_warmup_steps,
                num_measured_steps=num_measured_steps,
                config=OwnModelConfig(),
                options={"model": reference(model)},
            ),
        ),
        default_preset="own",
        builtin_data=(made,),
        other_data="no other",
        equivalence=study.EQUIVALENCE,
        draws_random_numbers=True,
    )


def reference(function: Callable[[], Any]) -> str:
    """Returns a function of a module as ``MODULE:FUNCTION``."""
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not name.isidentifier() or module == "__main__":
        raise ValueError(
            f"{function!r} cannot be found by the process of a trial: give a function "
            "that is defined at the top of a module"
        )
    return f"{module}:{name}"
