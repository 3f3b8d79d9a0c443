"""What is written appears as a whole, and errors say where."""

import errno
import os

import pytest

from results.store import atomic


@pytest.fixture
def failing_sync(monkeypatch):
    """Lets the disk fail when it is synced."""

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.usefixtures("failing_sync")
def test_an_error_of_a_disk_names_the_file(tmp_path):
    """Without a name it is taken for one of the standard output."""
    with pytest.raises(OSError, match=r"Input/output error: '.*/x\.json'"):
        atomic.write_text(tmp_path / "x.json", "{}")
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}'"):
        atomic.sync(tmp_path)

    assert [] == list(tmp_path.iterdir())


@pytest.mark.usefixtures("failing_sync")
def test_a_folder_whose_name_is_not_on_the_disk_is_none(tmp_path):
    """So that the command that made it can be given again."""
    (tmp_path / "made").mkdir()
    with pytest.raises(OSError, match="Input/output error"):
        atomic.sync_or_remove(tmp_path / "made")

    assert [] == list(tmp_path.iterdir())
