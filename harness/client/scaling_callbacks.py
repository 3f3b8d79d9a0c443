"""Callbacks that connect the loops of frameworks to a scaling study.

    import scaling_callbacks, scaling_client

    run = scaling_client.connect()
    model.fit(data, callbacks=[scaling_callbacks.keras_callback(run, 32)])

Copy this file beside ``scaling_client.py``. Each function imports its framework when it
is called, and takes what ``scaling_client.connect`` returned, and the examples of a
step (of an update, for Hugging Face) of all processes together. A study ends the
training when it has seen enough, so give data that does not end, or enough epochs;
outside of one, the training goes on after its rate was printed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from harness.client.scaling_client import ClientRun, TimedStep


class _Driven:
    """Steps of a loop that a framework drives."""

    def __init__(self, run: ClientRun, examples: int | None) -> None:
        self._run, self._examples = run, examples
        self._step: TimedStep | None = None
        self.is_over = False

    def begin(self) -> None:
        """Begins the first step; the others begin where the one before ends."""
        if self._step is None and not self.is_over:
            self._next()

    def end(self, loss: Any) -> bool:
        """Ends a step, waits for the next block; whether the training goes on."""
        if self._step is not None:
            self._step.done(loss=loss, examples=self._examples)
            self._next()
        return not (self.is_over and self._run.is_study)

    def _next(self) -> None:
        self._step = self._run.next_step()
        self.is_over = self._step is None


def keras_callback(run: ClientRun, examples: int | None = None) -> Any:
    """Returns a callback for ``fit`` of Keras 3: each batch is a step.

    With ``steps_per_execution`` k, ``examples`` are those of k batches. The loss is the
    one that Keras logs: a mean since the epoch began.
    """
    import keras

    loop = _Driven(run, examples)

    class ScalingCallback(keras.callbacks.Callback):
        """Times the batches of ``fit``, and ends it."""

        def on_train_batch_begin(self, *_: Any, **_fields: Any) -> None:
            loop.begin()

        def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
            loss = (logs or {}).get("loss")
            self.model.stop_training |= not loop.end(loss)

    return ScalingCallback()


def lightning_callback(run: ClientRun, examples: int | None = None) -> Any:
    """Returns a callback for the ``Trainer`` of Lightning: each batch is a step.

    The loss is what ``training_step`` returned; reading it waits for the device.
    """
    try:
        from lightning.pytorch import callbacks
    except ImportError:
        from pytorch_lightning import callbacks

    loop = _Driven(run, examples)

    class ScalingCallback(callbacks.Callback):
        """Times the batches of ``Trainer.fit``, and ends it."""

        def on_train_batch_start(self, *_: Any) -> None:
            loop.begin()

        def on_train_batch_end(
            self, trainer: Any, _module: Any, outputs: Any, *_: Any
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if not loop.end(loss):
                trainer.should_stop = True

    return ScalingCallback()


def trainer_callback(run: ClientRun, examples: int | None = None) -> Any:
    """Returns a callback for the ``Trainer`` of Hugging Face: each update is a step.

    Its loss is in the logs only, so the record has none. On GPUs it waits for the
    device.
    """
    import torch
    import transformers

    loop = _Driven(run, examples)

    class ScalingCallback(transformers.TrainerCallback):
        """Times the updates of ``Trainer.train``, and ends it."""

        def on_step_begin(self, *_: Any, **_fields: Any) -> None:
            loop.begin()

        def on_step_end(
            self, _args: Any, _state: Any, control: Any, **_fields: Any
        ) -> Any:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            control.should_training_stop |= not loop.end(None)
            return control

    return ScalingCallback()


class JaxStep:
    """A step of a JAX loop, which waits for the device; ``index`` counts from 0."""

    def __init__(self, step: TimedStep) -> None:
        self.index = step.index
        self._step = step

    def done(
        self, outputs: Any, *, loss: Any = None, examples: int | None = None
    ) -> None:
        """Waits for all arrays of ``outputs``, then ends the step."""
        import jax

        jax.block_until_ready(outputs)
        self._step.done(loss=loss, examples=examples)


def jax_steps(run: ClientRun, num_steps: int | None = None) -> Iterator[JaxStep]:
    """Yields the steps of a JAX loop; ``step.done(outputs)`` waits for the device."""
    for step in run.steps(num_steps):
        yield JaxStep(step)
