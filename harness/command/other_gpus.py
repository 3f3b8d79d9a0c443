"""GPUs that a program uses, and that its trial does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.machine import gpus

if TYPE_CHECKING:
    from collections.abc import Collection


VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class OtherGpus:
    """Looks at the GPUs of this machine that are not those of a trial.

    A program that chooses devices by itself takes them from other trials, and its rate
    is that of more devices than its record says. Where the driver names processes by
    other ids, as in some containers, nothing is found.

    Attributes:
      used: Numbers of those that the program had a context on.
    """

    def __init__(self, visible: str | None) -> None:
        """Reads which there are."""
        self.used: set[int] = set()
        self._others: set[int] = set()
        if visible is not None:
            found, own = gpus.read_gpus(), {*visible.split(",")}
            ours = {gpu.index for gpu in found if {gpu.cuda_id, gpu.uuid} & own}
            self._others = {gpu.index for gpu in found} - ours

    def look(self, pids: Collection[int]) -> None:
        """Notes on which of them some processes have a context now."""
        if not self._others:
            return
        with gpus.driver() as nvml:
            for index in self._others - self.used:
                try:
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                except nvml.NVMLError:
                    continue  # lost, or it does not say who uses it
                if {user.pid for user in users} & {*pids}:
                    self.used.add(index)
