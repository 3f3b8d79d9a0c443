"""Metadata of a checkpoint, readable before it is restored."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import catalog
from replicator.checkpoint.inventory import VariableFacts, digest
from replicator.checkpoint.position import Position
from replicator.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.checkpoint.local_state import CheckpointedBackend

FORMAT = 2
# In the first, positions do not say how many pipelines the job has.
_READ = (1, FORMAT)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Facts about a checkpoint and the job that saved it."""

    step: int  # Training step, as the caller counts.
    backend: str  # Catalogue name of the backend, or its class if it is not listed.
    num_replicas: int  # Replicas of the job.
    num_workers: int  # Processes that ran the program.
    library_version: str  # Version of this package.
    tensorflow_version: str  # Version of TensorFlow.
    variables: Mapping[str, VariableFacts]  # Shape and type of every variable, by path.
    digest: str  # A hash of ``variables``.
    # By name, the paths of the weights that an optimizer updates, in its order; None if
    # it had not updated any.
    optimizers: Mapping[str, list[str] | None]
    kinds: Mapping[str, str]  # By path, the kind of each replica-local variable.
    # How far the inputs of each worker were read; empty without inputs.
    positions: tuple[Position, ...]


def describe(repl: CheckpointedBackend, **facts: Any) -> Metadata:
    """Makes metadata from a replicator, the installed versions and ``facts``."""
    return Metadata(
        backend=_backend_name(repl),
        num_replicas=repl.num_replicas,
        num_workers=repl.num_programs,
        library_version=_library_version(),
        tensorflow_version=tf.__version__,
        digest=digest(facts["variables"]),
        **facts,
    )


def to_json(metadata: Metadata) -> str:
    """Writes metadata."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(metadata)})


def from_json(text: str, path: str) -> Metadata:
    """Reads metadata."""
    fields = json.loads(text)
    version = fields.pop("format")
    if version not in _READ:
        raise CheckpointError(
            f"checkpoint {path!r} has format {version!r}, but this version reads "
            f"{FORMAT!r}; use the library version {fields['library_version']}"
        )
    fields["variables"] = {
        name: VariableFacts(shape=tuple(v["shape"]), dtype=v["dtype"])
        for name, v in fields["variables"].items()
    }
    fields["positions"] = tuple(Position(**p) for p in fields["positions"])
    return Metadata(**fields)


def _backend_name(repl: CheckpointedBackend) -> str:
    try:
        return catalog.entry_of(type(repl)).name
    except LookupError:  # a backend of the user's own
        return type(repl).__name__


def _library_version() -> str:
    try:
        return importlib.metadata.version("replicator-harness")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
