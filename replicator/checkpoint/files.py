"""Files: atomic saves, so that the latest complete checkpoint is always valid."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from typing import Any

import tensorflow as tf

from replicator._tf.messages import reason_of
from replicator.errors import CheckpointError


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
