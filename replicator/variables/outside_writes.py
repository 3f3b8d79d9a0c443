"""Outside writes: whether variables were changed between two dispatches.

What the methods of a variable write reaches the copies at once (``VariableTable``).
What raw ops and graphs write leaves nothing behind but the value: TensorFlow's
variables have no version number. So a variable that has copies, and that others can
write (``VariableTable.is_checked``), has a state with which the copies agree
(``Entry.seen``), compared before a dispatch and recorded after it. The copies
themselves do not tell: a mean of statistics equals none of them. On GPUs this is one
compiled function per device, whatever the number of variables: as single ops it was 12
kernels for each of them, twice. CPUs hash each variable by one op, and XLA would be
slower there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives.buckets import positions_by_dtype
from replicator.step.traced_once import traced_once
from replicator.validation.arguments import is_one_of, shown
from replicator.variables.fingerprints import bits, is_compiled, state, state_of
from replicator.variables.kinds import Kind
from replicator.variables.vectors import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.variables.table import Entry

_POLICIES = ("detect", "never")


def are_detected(policy: Any) -> bool:
    """Whether an option ``external_writes`` requests the check."""
    if not is_one_of(policy, _POLICIES):
        raise ValueError(
            f"external_writes {shown(policy)} is not one of 'detect' (variables that "
            "were written outside run() are found before each run) and 'never' (no "
            "check: call refresh_variables() after writing)"
        )
    return bool(policy == "detect")


def was_written(entry: Entry) -> bool:
    """Whether the user's variable differs from what its copies were made of; waits."""
    if entry.kind is Kind.MIRRORED:
        own = entry.variable.numpy().tobytes()
        others = [copy for copy in entry.copies if copy is not entry.variable]
        return any(copy.numpy().tobytes() != own for copy in others)
    if entry.kind is Kind.PARTIAL:  # of its copies only the mean has a meaning
        return False
    now = state(entry.variable, entry.kind)
    return bool(entry.seen.numpy().tobytes() != now.numpy().tobytes())


class WriteCheck:
    """The check of some variables, as ops of the graph that is being built."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Takes entries that have a ``seen``."""
        self._entries = tuple(entries)
        self._plain = [e for e in entries if not is_compiled(e.variable)]
        self._compiled: dict[str, list[Entry]] = {}
        for entry in entries:
            if is_compiled(entry.variable):
                device = entry.variable.device
                self._compiled.setdefault(device, []).append(entry)

    def is_changed(self) -> tf.Tensor:
        """Whether any variable differs from what was recorded of it."""
        differs = [
            _compile(_differ_compiled, entries, device)
            for device, entries in self._compiled.items()
        ]
        return _any([*differs, *_differ(self._plain, _plain_state)])

    def record(self, values: Sequence[tf.Tensor | None]) -> None:
        """Records the states of all variables."""
        for entry, value in zip(self._entries, values, strict=True):
            if not is_compiled(entry.variable):
                is_whole = entry.variable.shape.is_fully_defined()
                is_known = entry.kind.is_per_replica and is_whole and value is not None
                now = value if is_known else _plain_state(entry)
                entry.seen.assign(now, read_value=False)
        for device, entries in self._compiled.items():
            _compile(_assign, entries, device)


def _compile(
    function: Callable[[Sequence[Entry]], Any], entries: Sequence[Entry], device: str
) -> Any:
    def compiled() -> Any:
        return function(entries)

    with tf.device(device):
        return traced_once(compiled, jit_compile=True)()


def _differ_compiled(entries: Sequence[Entry]) -> tf.Tensor:
    return _any(_differ(entries, _compiled_state))


def _differ(
    entries: Sequence[Entry], now_of: Callable[[Entry], tf.Tensor]
) -> list[tf.Tensor]:
    """Compares each type as one vector, which is one op instead of one per variable."""
    found = []
    for places in positions_by_dtype(entry.seen for entry in entries).values():
        of_type = [entries[place] for place in places]
        now = bits(pack(list(map(now_of, of_type))))
        seen = bits(pack([entry.seen.value() for entry in of_type]))
        found.append(tf.reduce_any(now != seen))
    return found


def _any(flags: Sequence[tf.Tensor]) -> tf.Tensor:
    return flags[0] if len(flags) == 1 else tf.reduce_any(tf.stack(flags))


def _plain_state(entry: Entry) -> tf.Tensor:
    return state(entry.variable, entry.kind)


def _compiled_state(entry: Entry) -> tf.Tensor:
    # XLA has the device from the function; a scope of its own would be another one.
    variable = entry.variable
    return state_of(variable.value(), entry.kind, variable.device, variable.shape)


def _assign(entries: Sequence[Entry]) -> None:
    for entry in entries:
        entry.seen.assign(_compiled_state(entry), read_value=False)
