"""Peak resident memory of this process during the measured window.

Where the kernel allows it, the high-water mark (``VmHWM``) is reset when the window
starts, and read when it ends: exact, without overhead in the window. Elsewhere the
resident size is read after every step, which can miss a peak within a step. The method
used is recorded with the figure.
"""

from __future__ import annotations

from pathlib import Path

RESET_METHOD = "VmHWM reset at the start of the window"
SAMPLED_METHOD = "resident size read after each step"

_RESET_PEAK = "5"  # proc(5): writing 5 to clear_refs resets VmHWM


class ResidentMemory:
    """Probe for the host memory of one process.

    Attributes:
      method: How the peak is measured, for the record.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc
        self._sampled_peak = 0
        self.method = SAMPLED_METHOD

    def start(self) -> None:
        """Starts the window."""
        try:
            (self._proc / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        except OSError:
            self.method = SAMPLED_METHOD
        else:
            # Some kernels accept the write and reset nothing: the mark then stays
            # above the current size.
            is_reset = self._status("VmHWM") <= self._status("VmRSS") * 1.01
            self.method = RESET_METHOD if is_reset else SAMPLED_METHOD
        self._sampled_peak = self._status("VmRSS")

    def sample(self) -> None:
        """Samples the current size; called between steps."""
        if self.method == SAMPLED_METHOD:
            self._sampled_peak = max(self._sampled_peak, self._status("VmRSS"))

    def peak_bytes(self) -> int:
        """Returns the peak since ``start``."""
        if self.method == RESET_METHOD:
            return self._status("VmHWM")
        return max(self._sampled_peak, self._status("VmRSS"))

    def _status(self, name: str) -> int:
        for line in (self._proc / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"{self._proc / 'status'} has no {name}")
