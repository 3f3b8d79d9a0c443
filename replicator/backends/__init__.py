"""One module per way of running replicas, and what creates one from its name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from replicator.catalog import BACKENDS, MAX_REPLICAS, ONE_PROCESS
from replicator.core.validation import format_value, is_integer, is_one_of
from replicator.errors import (
    DeviceError,
    MeasuringControlError,
    UnknownBackendError,
)

if TYPE_CHECKING:
    from replicator.backends.base import Replicator


def backend_names() -> tuple[str, ...]:
    """Returns the backend names that ``create`` accepts, sorted."""
    return tuple(sorted(BACKENDS))


def create(
    backend: str,
    *,
    num_replicas: int | None = None,
    without_communication: bool = False,
    **options: Any,
) -> Replicator:
    """Creates the replicator of a backend.

    Args:
      backend: One of ``backend_names()``.
      num_replicas: Replicas of the whole job; by default one per worker, and one where
        there are no workers.
      without_communication: Makes a measuring control, whose replicas diverge: every
        collective of a step is replaced by the replica's own value, so what is left is
        the step without communication. Never train with it; ``assert_in_sync``,
        checkpoints and sharded updates raise errors.
      **options: Keyword arguments of the backend's class, such as ``devices``.

    Returns:
      A new replicator.

    Raises:
      UnknownBackendError: No such backend; the message lists the backends.
      DeviceError: The backend cannot run that many replicas.
      MeasuringControlError: The backend has no such control; the message says why.
      TypeError: The backend has no such option; the message lists its options.
    """
    if not is_one_of(backend, BACKENDS):
        raise UnknownBackendError(
            f"unknown backend {format_value(backend)}; use one of "
            f"{', '.join(backend_names())}"
        )
    info = BACKENDS[backend]
    if num_replicas is None and info.processes == ONE_PROCESS:
        num_replicas = 1
    if not (num_replicas is None or is_integer(num_replicas)):
        raise DeviceError(
            f"num_replicas {format_value(num_replicas)} must be an integer"
        )
    limit = info.max_replicas or MAX_REPLICAS
    if num_replicas is not None and not 1 <= num_replicas <= limit:
        allowed = "1" if limit == 1 else f"1 to {limit}"
        raise DeviceError(
            f"backend {info.name!r} cannot run "
            f"num_replicas={format_value(num_replicas)}; it runs {allowed}"
        )
    if without_communication:
        if info.no_control_because:
            names = [n for n, other in BACKENDS.items() if not other.no_control_because]
            raise MeasuringControlError(
                f"backend {info.name!r} has no control without communication: "
                f"{info.no_control_because}; use one of {', '.join(sorted(names))}"
            )
        options["without_communication"] = True
    kind = info.load()
    parameters = inspect.signature(kind).parameters
    takes_any = any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
    known = [name for name in parameters if name != "num_replicas"]
    for name in options:
        if name not in known and not takes_any:
            raise TypeError(
                f"backend {backend!r} has no option {name!r}; it has "
                f"{', '.join(map(repr, known)) or 'none'}"
            )
    # Of a cluster, only the backend's class knows how many workers it has.
    replicator: Replicator = kind(num_replicas=num_replicas, **options)
    return replicator
