"""What a program costs the machine while its processes wait for their turns."""

from __future__ import annotations

from harness.command import supervised
from harness.command.running import Run


def test_no_processes_are_looked_through(monkeypatch, tmp_path):
    """Others have their turns meanwhile; a program without clients fails as ever."""
    looks = []
    monkeypatch.setattr(Run, "_sample", looks.append)

    assert 1 == supervised.run(["true"], tmp_path, {"PATH": "/usr/bin:/bin"}, tmp_path)
    assert not looks
    assert "no process of it had connected" in (tmp_path / "rank_0.jsonl").read_text()
