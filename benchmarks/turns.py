"""Turns: what gives them to a loop that is measured, in place of the harness."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any


def start_giving(num_turns: int, num_steps: int) -> str:
    """Starts a thread that gives turns, as the harness does; returns its address."""
    from harness.client.scaling_client import native_address

    address = f"@bench-measuring-{os.getpid()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(native_address(address))
    server.listen(1)
    threading.Thread(
        target=_give_turns, args=(server, num_turns, num_steps), daemon=True
    ).start()
    return address


def _give_turns(server: socket.socket, num_turns: int, num_steps: int) -> None:
    connection, _ = server.accept()
    commands: list[dict[str, Any]] = [
        {"command": "build", "is_alone": True},
        {"command": "warm_up", "heap_fraction": 0.0},
        *(
            {
                "command": "turn",
                "round_index": index,
                "attempt": 0,
                "num_steps": num_steps,
            }
            for index in range(num_turns)
        ),
        {"command": "finish"},
    ]
    with server, connection, connection.makefile("r", encoding="utf-8") as lines:
        for command in commands:
            lines.readline()
            connection.sendall(json.dumps(command).encode("ascii") + b"\n")
