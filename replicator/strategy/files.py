"""Files that callbacks of ``fit`` write, where several processes run the program.

Keras runs every callback in every process. Two that write the same file end in an error
of HDF5, or in a file that is neither's; TensorBoard counts each number twice. What a
``BackupAndRestore`` of each process saved may be of different epochs after an
interruption, from which no common step follows.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Callback of Keras -> its attribute with the file or folder that it writes.
_WRITERS = {
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "TensorBoard": "log_dir",
}
_BACKUP = "BackupAndRestore"
# How many names of a process are compared: the same number in each.
_NUM_NAMES = 64


def check(strategy: Any, replicator: Any) -> None:
    """Refuses callbacks of the ``fit`` that calls this, if processes share files.

    All processes have to call it.
    """
    callbacks = _tf_distribute.callbacks_of_fit()
    if callbacks is None:
        return
    own = _written(callbacks)
    digests = dict(zip(map(_digest, own), own, strict=True))
    values = np.zeros([_NUM_NAMES], np.int64)
    values[: len(digests)] = list(digests)[:_NUM_NAMES]

    def of_replica(context: Any) -> tf.Tensor:
        is_first = context.replica_id_in_sync_group == replicator.first_replica_id
        return tf.constant(values if is_first else np.zeros_like(values))

    mine = strategy.experimental_distribute_values_from_function(of_replica)
    found, counts = np.unique(strategy.gather(mine, axis=0), return_counts=True)
    for digest, count in zip(found, counts, strict=True):
        if digest and count > 1:
            kind, path = digests.get(int(digest), ("a callback", "a file"))
            raise StrategyError(_message(kind, path, int(count)))


def _message(kind: str, path: str, count: int) -> str:
    if kind == _BACKUP:
        return (
            f"{_BACKUP} saves in each of {count} worker processes, which may resume at "
            f"different epochs; write {_BACKUP}(folder, "
            'save_freq="epoch" if repl.is_chief else sys.maxsize, '
            "delete_checkpoint=repl.is_chief), with a folder that all can read"
        )
    return (
        f"{kind} writes {path} in each of {count} worker processes; give each a path "
        f'of its own, as in f"{{folder}}/{{repl.worker_id}}", or pass {kind} to fit() '
        "only if repl.is_chief"
    )


def _written(callbacks: Iterable[Any]) -> list[tuple[str, str]]:
    """Class and file of each callback that writes one."""
    written = []
    for callback in callbacks:
        for kind in type(callback).__mro__:
            if not kind.__module__.startswith("keras."):
                continue  # a class of the user's, with a name of its own
            name = kind.__name__
            if name in _WRITERS:
                path = Path(os.fspath(getattr(callback, _WRITERS[name])))
                written.append((name, str(path.absolute())))
            elif name == _BACKUP and callback.save_freq != sys.maxsize:
                written.append((name, ""))
    return written


def _digest(written: tuple[str, str]) -> int:
    """A number that is not 0, the same in every process."""
    kind, path = written
    text = path or kind
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 1
