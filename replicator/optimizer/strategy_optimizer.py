"""wrap_optimizer under a stock strategy: Keras sums over replicas by itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.optimizer.gradients import times
from replicator.optimizer.pairs import check_are_optimized
from replicator.optimizer.wrapper import ReplicatedOptimizer, num_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options by which a Keras optimizer clips, by name.
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


class _Clips(threading.local):
    def __init__(self) -> None:
        self.found: dict[str, float] = {}


_CLIPS = _Clips()


class StrategyOptimizer(ReplicatedOptimizer):
    """The same contract on the stock path of Keras under ``tf.distribute``.

    Keras sums gradients over the strategy's replicas inside ``apply``, so scaling them
    by 1/R first makes that sum the average: communication happens once, as in stock
    code. Keras clips before it sums; to clip the average, as the contract says, a
    clipping optimizer's gradients are averaged and clipped here.
    """

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        # Replicas are traced in threads that take turns at collectives. This is read
        # before the first one, because _apply of another thread unsets the options.
        _CLIPS.found = _clips_of(self.wrapped)
        super()._update(grads, variables)

    def _apply(self, averaged: list[Any], variables: list[Any]) -> None:
        optimizer = self.wrapped
        check_are_optimized(optimizer, variables)
        clips = _CLIPS.found
        averaged = _clip(averaged, clips)
        scaled = [times(grad, 1.0 / num_replicas()) for grad in averaged]
        try:
            for name in clips:
                setattr(optimizer, name, None)
            optimizer.apply(scaled, variables)
        finally:
            for name, value in clips.items():
                setattr(optimizer, name, value)

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        if _CLIPS.found or self.options.compression is not None:
            self._apply(self._all_reduce(grads, "mean", variables), variables)
            return
        check_are_optimized(self.wrapped, variables)
        scale = 1.0 / num_replicas()
        self.wrapped.apply([times(grad, scale) for grad in grads], variables)


def _clips_of(optimizer: Any) -> dict[str, float]:
    """The clipping options that a Keras optimizer has set, by name."""
    found = {name: getattr(optimizer, name, None) for name in _CLIPPING}
    return {name: value for name, value in found.items() if value}


def _clip(grads: Sequence[Any], clips: dict[str, float]) -> list[Any]:
    """Clips as a Keras optimizer with these options would."""
    if "clipnorm" in clips:
        return [tf.clip_by_norm(grad, clips["clipnorm"]) for grad in grads]
    if "global_clipnorm" in clips:
        return list(tf.clip_by_global_norm(list(grads), clips["global_clipnorm"])[0])
    if "clipvalue" in clips:
        limit = clips["clipvalue"]
        return [tf.clip_by_value(grad, -limit, limit) for grad in grads]
    return list(grads)
