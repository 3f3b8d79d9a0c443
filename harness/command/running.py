"""Runs a program, hands over what it prints, and leaves none of its processes behind.

Orphans of the program become children of this process (the kernel's child subreaper),
so that it finds them whatever they did to their session and environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import selectors
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import psutil

from harness.client.scaling_client import (
    ClientError,
    LostHarnessError,
    RankFile,
    rank_path,
)
from harness.command import peers
from harness.command.output import KeptOutput, described
from harness.command.reader import CommandError
from harness.trial import process_tree
from harness.trial.process_tree import request_death_signal
from harness.trial.rank_file import end_like, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path


_PR_SET_CHILD_SUBREAPER: Final = 36
_CHUNK_BYTES: Final = 2**16
_SAMPLE_SEC: Final = 1.0
POLL_SEC: Final = 0.25
_DRAIN_SEC: Final = 1.0
"""For processes that end with the program, and for output that is on its way."""


class Run:
    def __init__(self, look: Callable[[list[int]], None] | None = None) -> None:
        # Gets the ids of all its processes every second; else they are not looked for.
        self._look = look
        self.kept = (KeptOutput(1), KeptOutput(2))  # what it prints
        self.exit_code: int | None = None  # as in ``subprocess``; None while it runs
        self.num_processes = 0  # the most at once, as sampled
        self.num_left = 0  # that outlived it and were ended
        self.peak_bytes = 0  # the largest resident memory of all, as sampled
        self.duration_sec = 0.0  # from start to end
        self.cpu_sec = 0.0  # of all its processes

    def output(
        self,
        words: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        period_sec: float = POLL_SEC,
    ) -> Generator[tuple[int | None, bytes, int], None, None]:
        """Runs the program, and ends it when this is closed.

        Yields number, bytes and time of what a stream has; none of the bytes at its
        end. Once a period the number is None.
        """
        become_reaper()
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=request_death_signal,  # noqa: PLW1509 - before any thread
            )
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                advice = "begin a script with '#!/bin/sh', or name its interpreter"
            else:
                advice = (
                    "give a program that is in PATH, or its path from the folder of"
                    " the sweep"
                )
            raise CommandError(
                f"--command cannot be started: {words[0]!r}: {error.strerror}; {advice}"
            ) from error
        with process:
            try:
                yield from self._read(process, period_sec)
                # It may have closed its output, and work on.
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_SEC)
                    yield None, b"", time.monotonic_ns()
            finally:
                self.num_left = self._end_all(process)
                self.exit_code = process.wait()
                self.duration_sec = time.monotonic() - start
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                self.cpu_sec = used.ru_utime + used.ru_stime
                for kept in self.kept:
                    kept.end()

    def _read(
        self, process: subprocess.Popen[bytes], period_sec: float
    ) -> Iterator[tuple[int | None, bytes, int]]:
        """Reads until the output ends, or the program has exited a moment ago."""
        with selectors.DefaultSelector() as selector:
            for index, stream in enumerate((process.stdout, process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, index)
            with contextlib.suppress(PermissionError):  # a regular file has no end
                selector.register(0, selectors.EVENT_READ)
            num_open, sample_at, exited_at = 2, 0.0, math.inf
            while num_open and time.monotonic() < exited_at + _DRAIN_SEC:
                for key, _ in selector.select(period_sec):
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    if key.data is None:
                        if not chunk:
                            raise LostHarnessError("the harness has exited")
                        continue
                    if not chunk:
                        selector.unregister(key.fileobj)
                        num_open -= 1
                    self.kept[key.data].add(chunk)
                    yield key.data, chunk, time.monotonic_ns()
                yield None, b"", time.monotonic_ns()
                now = time.monotonic()
                if self._look is not None and now >= sample_at:
                    self._sample(self._look)
                    sample_at = now + _SAMPLE_SEC
                if process.poll() is not None:
                    exited_at = min(exited_at, now)

    def _sample(self, look: Callable[[list[int]], None]) -> None:
        found = descendants()
        self.num_processes = max(self.num_processes, len(found))
        total = 0
        for process in found:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, total)
        look([process.pid for process in found])

    def _end_all(self, process: subprocess.Popen[bytes]) -> int:
        """Ends all processes; returns how many outlived the program by themselves."""
        has_exited = process.poll() is not None
        deadline = time.monotonic() + (_DRAIN_SEC if has_exited else 0.0)
        while True:
            left = [one for one in _living() if one.pid != process.pid]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        number = len(left) if has_exited else 0
        signal_all = psutil.Process.terminate
        deadline = time.monotonic() + process_tree.TERMINATE_GRACE_SEC
        while alive := _living():
            for one in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    signal_all(one)
            pause = time.monotonic() + 0.5
            while _living() and time.monotonic() < pause:
                process.poll()
                time.sleep(0.02)
            if time.monotonic() > deadline:
                signal_all = psutil.Process.kill
        return number


def become_reaper() -> None:
    """Makes orphans below this process its children."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Returns all processes below this one, zombies included."""
    return psutil.Process().children(recursive=True)


def _living() -> list[psutil.Process]:
    found = []
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# They write their own rank files and take turns; this process keeps what they print,
# ends what outlives the program, and says what is wrong where none has connected.


def run_supervised(
    words: Sequence[str], folder: Path, variables: Mapping[str, str], trial_dir: Path
) -> int:
    # Its processes say themselves what they use; looking through all processes every
    # second would take from the turns of other trials.
    running, why = Run(), ""
    try:
        for _ in running.output(words, folder, variables):
            pass
    except CommandError as error:
        why = str(error)
    code = running.exit_code
    if not rank_path(trial_dir, 0).exists():
        last = described(running.kept[1].last_bytes, running.kept[0].last_bytes)
        file = RankFile(rank_path(trial_dir, 0), time.monotonic_ns)
        file.fail(ClientError(one_line(why or _never_connected(code, last))))
        file.close()
        return 1
    peers.check_losses(trial_dir)
    return 1 if code is None else end_like(code)


def _never_connected(code: int | None, last: str) -> str:
    if code:
        return f"the command exited with code {code}, before it had connected; {last}"
    return (
        "the command ended well, and no process of it had connected: call"
        " scaling_client.connect() in it, or give --metric NAME=PATTERN for what it"
        f" prints; {last}"
    )
