"""Peak memory is that of the measured window."""

from harness.client.scaling_client import (
    RESET_METHOD,
    SAMPLED_METHOD,
    ResidentMemory,
)


def fake_proc(tmp_path, peak_kib, size_kib):
    (tmp_path / "status").write_text(
        f"Name:\tx\nVmHWM:\t{peak_kib} kB\nVmRSS:\t{size_kib} kB\n"
    )
    return tmp_path


def test_peak_memory_is_of_the_window(tmp_path):
    """After the reset, the mark is the kernel's."""
    probe = ResidentMemory(fake_proc(tmp_path, 100, 100))
    probe.start()
    fake_proc(tmp_path, 300, 200)

    assert RESET_METHOD == probe.method
    assert 300 * 1024 == probe.peak_bytes()
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_without_a_reset_the_size_is_sampled(tmp_path):
    """A mark from before the window would be a wrong number."""
    probe = ResidentMemory(fake_proc(tmp_path, 900, 100))
    probe.start()
    fake_proc(tmp_path, 900, 300)
    probe.sample()
    fake_proc(tmp_path, 900, 200)

    assert SAMPLED_METHOD == probe.method
    assert 300 * 1024 == probe.peak_bytes()


def test_the_real_peak_is_seen_and_forgotten():
    """On this kernel: a large array before the window does not count."""
    probe = ResidentMemory()
    before = bytearray(200 * 2**20)
    before[::4096] = b"x" * len(before[::4096])
    del before
    probe.start()
    base = probe.peak_bytes()
    inside = bytearray(64 * 2**20)
    inside[::4096] = b"x" * len(inside[::4096])
    probe.sample()

    assert 40 * 2**20 < probe.peak_bytes() - base < 120 * 2**20
