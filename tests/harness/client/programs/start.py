"""Starts the program as some ranks, as ``torchrun`` does: all end when one fails.

``LINGER`` leaves the others running.
"""

import os
import pathlib
import subprocess
import sys
import time

PROGRAM = pathlib.Path(__file__).with_name("train.py")
NUM_RANKS = int(sys.argv[1])
ranks = [
    subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={
            **os.environ,
            "RANK": "0" if os.environ.get("SAME_RANK") else str(rank),
            "WORLD_SIZE": str(NUM_RANKS),
        },
    )
    for rank in range(NUM_RANKS)
]
while any(rank.poll() is None for rank in ranks):
    codes = [rank.poll() for rank in ranks]
    if any(codes) and not os.environ.get("LINGER"):
        for rank in ranks:
            rank.kill()
        sys.exit(max(code or 0 for code in codes) or 1)
    time.sleep(0.02)
sys.exit(max(abs(rank.wait()) for rank in ranks))
