"""Files: atomic saves, so that the latest complete checkpoint is always valid."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import catalog
from replicator._tf.workers import reason_of
from replicator.checkpoint.inventory import VariableFacts, digest
from replicator.checkpoint.position import Position
from replicator.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.checkpoint.division import CheckpointedBackend


def latest(directory: str) -> str | None:
    """Prefix of the last complete checkpoint, or None."""
    state = tf.train.get_checkpoint_state(directory)
    return str(state.model_checkpoint_path) if state else None


def complete(directory: str) -> list[str]:
    """Prefixes of all complete checkpoints, oldest first."""
    state = tf.train.get_checkpoint_state(directory)
    return list(map(str, state.all_model_checkpoint_paths)) if state else []


def write(
    checkpoint: tf.train.Checkpoint, directory: str, max_to_keep: int | None
) -> str:
    """Writes a checkpoint under the next number.

    The file ``checkpoint`` of the directory is replaced last, in one rename, after all
    other files were flushed to disk.
    """
    previous = latest(directory)
    number = 1 + max(map(_number, complete(directory)), default=0)
    try:
        # Created each time: after a failure it would still list the lost files.
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)
        manager.save(
            number,
            options=tf.train.CheckpointOptions(experimental_write_callbacks=[_flush]),
        )
    except (tf.errors.OpError, OSError, ValueError) as error:
        prefix = pathlib.Path(directory) / f"ckpt-{number}"
        if latest(directory) == previous:
            _delete(prefix)
        kept = (
            f"the latest valid checkpoint is {previous!r}"
            if previous
            else "there is no earlier checkpoint"
        )
        return (
            f"checkpoint {str(prefix)!r} could not be written: {reason_of(error)}; "
            f"{kept}; free space or repair the directory, then save again"
        )
    return ""


def _number(path: str) -> int:
    found = re.search(r"-(\d+)$", path)
    return int(found.group(1)) if found else 0


def _flush(path: str) -> None:
    """Flushes the files to disk before the ``checkpoint`` file names them."""
    prefix = pathlib.Path(path)
    for file in prefix.parent.glob(f"{prefix.name}.*"):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def _delete(prefix: pathlib.Path) -> None:
    """Removes the files of a failed save; the disk may be full."""
    with contextlib.suppress(OSError):
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            file.unlink()
        for file in prefix.parent.glob(f"{prefix.name}_temp/*"):
            file.unlink()


def open_reader(path: str) -> Any:
    """Opens the files of a checkpoint."""
    try:
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError, OSError, LookupError) as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: Exception) -> CheckpointError:
    """Makes the error of a checkpoint whose files are missing or damaged."""
    return CheckpointError(
        f"checkpoint {path!r} could not be read: {reason_of(error)}; its files "
        "(.index and .data-*) are missing or damaged; restore another checkpoint with "
        "restore(path)"
    )


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


def describe_checkpoint(repl: CheckpointedBackend, **facts: Any) -> Metadata:
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
