"""Prefetching to devices: batches are on the device before their step begins.

Without it, a batch is copied to its replica's device when the step that reads it
begins. With it, a thread fills a buffer on every replica's device while earlier steps
run. If replicas compute on the CPU device that their pipeline runs on, nothing is
copied, and the buffer is that of ``tf.data.Dataset.prefetch``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.errors import InputModeError
from replicator.placement import devices as device_lib
from replicator.validation.arguments import INT32_MAX, is_integer, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_num_batches(num_batches: Any) -> int:
    """Returns ``num_batches`` if it is a valid number of batches to prefetch."""
    if not is_integer(num_batches, least=0, most=INT32_MAX):
        raise ValueError(
            f"prefetch_to_device {shown(num_batches)} must be an integer of at least 0 "
            "(batches to prefetch to the device of each replica); use 1 or 2, or 0 for "
            "none"
        )
    return int(num_batches)


def refuse(num_batches: int, backend: str) -> None:
    """Rejects prefetching if workers that may restart run the pipelines."""
    if num_batches:
        raise InputModeError(
            f"prefetch_to_device={num_batches!r} does not work with {backend}, whose "
            "workers create pipelines again; end the dataset of input_fn with "
            f".prefetch({num_batches}) instead"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DevicePrefetch:
    """How batches are prefetched."""

    num_batches: int  # Size of each replica's buffer, in batches.
    # Full device name of each replica, which receives its batches.
    devices: tuple[str, ...]
    # CPU device of each pipeline; by default that of the first replica.
    sources: tuple[str, ...] = ()

    @property
    def copies(self) -> bool:
        """Whether batches are copied from the device of their pipeline to another.

        TensorFlow's iterators do not feed other processes: for those, batches are
        buffered at the pipeline.
        """
        sources = self._sources(1)
        share = len(self.devices) // len(sources)
        ways = [(d, sources[r // share]) for r, d in enumerate(self.devices)]
        is_near = all(device_lib.first_cpu(device) == source for device, source in ways)
        return is_near and any(device != source for device, source in ways)

    def iterators(self, pipelines: Sequence[tf.data.Dataset]) -> tuple[Any, ...]:
        """Iterates over pipelines, ahead of the reader."""
        share = len(self.devices) // len(pipelines)
        sources = self._sources(len(pipelines))
        found: list[Any] = []
        for index, (pipeline, source) in enumerate(
            zip(pipelines, sources, strict=True)
        ):
            if not self.copies:
                with tf.device(source):
                    found.append(iter(pipeline.prefetch(self.num_batches * share)))
                continue
            targets = self.devices[index * share : (index + 1) * share]
            found += _tf_data.device_iterators(
                pipeline, targets, source, self.num_batches
            )
        return tuple(found)

    def _sources(self, num_pipelines: int) -> tuple[str, ...]:
        by_default = (device_lib.first_cpu(self.devices[0]),) * num_pipelines
        return self.sources or by_default
