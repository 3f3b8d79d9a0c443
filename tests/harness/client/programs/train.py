"""Somebody's training loop, in a study; ``BEHAVIOR`` chooses what is wrong with it.

With a number, starts itself as some ranks, as ``torchrun`` does: all end when one
fails, and ``LINGER`` leaves the others running.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import scaling_client

BEHAVIOR = os.environ.get("BEHAVIOR", "")
IS_LAST = os.environ.get("RANK", "0") == os.environ.get("BAD_RANK", "0")
STEP_SEC = float(os.environ.get("STEP_SEC", "0.002"))


def misbehave(index):
    if index != 5 or not IS_LAST:
        return
    if BEHAVIOR == "raise":
        raise RuntimeError("the reducer is out of paper\nsecond line")
    if BEHAVIOR == "exit":
        os._exit(3)
    if BEHAVIOR == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if BEHAVIOR == "leaves_a_pipe":
        folder = pathlib.Path(os.environ[scaling_client.TRIAL_VARIABLE])
        (folder / "first_exit.json").mkdir()
        (folder / "blocks.jsonl").unlink(missing_ok=True)
        os.mkfifo(folder / "blocks.jsonl")


def main():
    if BEHAVIOR == "other_version" and IS_LAST:
        folder = pathlib.Path(os.environ[scaling_client.TRIAL_VARIABLE])
        asked = json.loads((folder / "client.json").read_text())
        (folder / "client.json").write_text(json.dumps({**asked, "protocol": 99}))
    if BEHAVIOR == "says_other_version":
        scaling_client.PROTOCOL = 99
        scaling_client.read_trial = lambda folder: json.loads(
            (folder / "client.json").read_text()
        )
    run = scaling_client.connect()
    if BEHAVIOR == "no_steps":
        return
    weight, num_steps = 1.0, 0
    for step in run.steps():
        num_steps += 1
        misbehave(step.index)
        if BEHAVIOR == "controls":
            assert not run.controls.nosync
        time.sleep(STEP_SEC)
        weight *= 0.9
        loss = float("nan") if (BEHAVIOR, step.index) == ("nan", 4) else weight
        if BEHAVIOR == "never_done":
            continue
        examples = run.global_batch_size
        if BEHAVIOR == "other_batch":
            examples = 20
        step.done(loss=None if BEHAVIOR == "no_loss" else loss, examples=examples)
        if BEHAVIOR == "twice":
            step.done(loss=loss)
        if BEHAVIOR == "leaves" and num_steps == 7:
            break
    run.quality("top_1", 0.75, num_examples=100, correct=75)


def start(num_ranks):
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={
                **os.environ,
                "RANK": "0" if os.environ.get("SAME_RANK") else str(rank),
                "WORLD_SIZE": str(num_ranks),
            },
        )
        for rank in range(num_ranks)
    ]
    while any(rank.poll() is None for rank in ranks):
        codes = [rank.poll() for rank in ranks]
        if any(codes) and not os.environ.get("LINGER"):
            for rank in ranks:
                rank.kill()
            sys.exit(max(code or 0 for code in codes) or 1)
        time.sleep(0.02)
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if sys.argv[1:]:
    start(int(sys.argv[1]))
else:
    main()
