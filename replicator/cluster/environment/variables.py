"""Reads one environment variable; a malformed one is explained in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Below the range from which kernels take ports for outgoing connections.
FIRST_PORT, LAST_PORT = 20000, 31999
_MOST_DIGITS = 10


def read_text(environ: Mapping[str, str], name: str, *, how: str) -> str:
    """Returns the value of a variable.

    Args:
      environ: The variables.
      name: Of the variable.
      how: What sets it, for the message.

    Raises:
      ClusterConfigError: It is not set, or empty.
    """
    text = environ.get(name, "")
    if not text:
        raise ClusterConfigError(
            f"{name} is not set, so this process does not know its cluster; {how}"
        )
    return text


def read_integer(
    environ: Mapping[str, str],
    name: str,
    *,
    least: int,
    most: int,
    how: str,
    default: int | None = None,
) -> int:
    """Returns the value of a variable as an integer.

    Args:
      environ: The variables.
      name: Of the variable.
      least: The smallest value that is allowed.
      most: The largest one.
      how: What sets it, for the message.
      default: The value of a variable that is not set; None requires it.

    Raises:
      ClusterConfigError: It is not set, not an integer, or out of range.
    """
    if default is not None and not environ.get(name):
        return default
    text = read_text(environ, name, how=how)
    is_integer = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_integer or not least <= int(text) <= most:
        raise ClusterConfigError(
            f"{name}={text!r} is not an integer from {least} to {most}; {how}"
        )
    return int(text)
