"""Files: writing so that the last complete checkpoint is always the one in charge."""

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

    The file ``checkpoint`` of the directory is replaced last, in one rename, and only
    when the disk has the rest.

    Returns:
      Nothing, or why it could not be written.
    """
    previous = latest(directory)
    number = 1 + max(map(_number, complete(directory)), default=0)
    try:
        # Made anew each time: after a failure it would believe in the lost files.
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)
        manager.save(
            number,
            options=tf.train.CheckpointOptions(experimental_write_callbacks=[_flush]),
        )
    except (tf.errors.OpError, OSError, ValueError) as error:
        prefix = pathlib.Path(directory) / f"ckpt-{number}"
        if latest(directory) == previous:
            _delete(prefix)
        kept = f"the last good one is {previous!r}" if previous else "there is none yet"
        return (
            f"checkpoint {str(prefix)!r} could not be written: {reason_of(error)}; "
            f"{kept}; free space or mend the directory, then save again"
        )
    return ""


def _number(path: str) -> int:
    found = re.search(r"-(\d+)$", path)
    return int(found.group(1)) if found else 0


def _flush(path: str) -> None:
    """Asks the disk for the files before the ``checkpoint`` file names them."""
    prefix = pathlib.Path(path)
    for file in prefix.parent.glob(f"{prefix.name}.*"):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def _delete(prefix: pathlib.Path) -> None:
    """Removes what a failed save left; a disk may be full."""
    with contextlib.suppress(OSError):
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            file.unlink()
        for file in prefix.parent.glob(f"{prefix.name}_temp/*"):
            file.unlink()


def open_reader(path: str) -> Any:
    """Opens the files of a checkpoint.

    Raises:
      CheckpointError: They are missing or damaged.
    """
    try:
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError, OSError, LookupError) as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: Exception) -> CheckpointError:
    """Makes the error of a checkpoint whose files are missing or damaged."""
    return CheckpointError(
        f"checkpoint {path!r} could not be read: {reason_of(error)}; its files "
        "(.index and .data-*) are missing or damaged: restore(path) another one"
    )
