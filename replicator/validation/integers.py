"""The check of integer arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

# The largest values of TensorFlow's integer types; a Python int has no limit.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def is_integer(
    value: Any, *, least: int | None = None, most: int | None = None
) -> TypeGuard[int]:
    """Whether a value is an integer, not less than ``least`` nor more than ``most``.

    ``True`` and ``False`` do not count, although they are instances of ``int``.
    """
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return (
        is_int and (least is None or value >= least) and (most is None or value <= most)
    )
