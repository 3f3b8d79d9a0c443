"""What a program costs the machine while its processes wait for their turns."""

from harness.command import supervised


def test_no_processes_are_looked_through(monkeypatch, tmp_path):
    """Others have their turns meanwhile. A program without clients fails as ever."""
    asked = []

    class Ended:
        """A run that ended well; a real one ends all children of this process."""

        exit_code = 0

        def __init__(self, **how):
            asked.append(how)

        def run(self, *_):
            """Does nothing."""

    monkeypatch.setattr(supervised, "Run", Ended)

    assert 1 == supervised.run(["true"], tmp_path, {}, tmp_path)
    assert [{"is_sampled": False}] == asked
    assert "no process of it had connected" in (tmp_path / "rank_0.jsonl").read_text()
