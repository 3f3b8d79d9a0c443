"""What the harness reads from a connection of a member.

A file of its own, since members only send, and the import of what compares secrets is a
part of the time until they start.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING, Any

from harness.launch.channel import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


class Received:
    """The messages of one connection; nothing is believed before the secret.

    Attributes:
      is_trusted: Whether the secret was right.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._rest = b""
        self.is_trusted = False

    def add(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the messages that are complete with some more bytes.

        Raises:
          ValueError: They do not come from a member.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError("the line is too long")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not a message")  # noqa: TRY004 (bytes, not a type)
            if self.is_trusted:
                yield message
                continue
            said = str(message.get("secret", ""))
            if not hmac.compare_digest(said.encode(), self._secret.encode()):
                raise ValueError("wrong secret")
            self.is_trusted = True
