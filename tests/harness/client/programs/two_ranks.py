"""Starts the program as two ranks, as ``torchrun`` does: both end when one fails.

``LINGER`` leaves the other one running.
"""

import os
import pathlib
import subprocess
import sys
import time

PROGRAM = pathlib.Path(__file__).with_name("train.py")
ranks = [
    subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={
            **os.environ,
            "RANK": "0" if os.environ.get("SAME_RANK") else str(rank),
            "WORLD_SIZE": "2",
        },
    )
    for rank in range(2)
]
while any(rank.poll() is None for rank in ranks):
    codes = [rank.poll() for rank in ranks]
    if any(codes) and not os.environ.get("LINGER"):
        for rank in ranks:
            rank.kill()
        sys.exit(1)
    time.sleep(0.02)
sys.exit(max(abs(rank.wait()) for rank in ranks) and 1)
