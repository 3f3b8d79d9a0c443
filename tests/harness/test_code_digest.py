"""The digest of the code that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import catalog

if TYPE_CHECKING:
    from pathlib import Path


def test_code_digest_covers_the_measured_code_only(tmp_path: Path) -> None:
    """A change of the replicator counts, one of the report does not."""
    root = tmp_path
    for name in catalog._MEASURED_HARNESS_FILES:
        (root / "harness").mkdir(exist_ok=True)
        (root / "harness" / name).write_text("")
    for package in ("replicator", "workloads", "reports"):
        (root / package).mkdir()
        (root / package / "a.py").write_text("x = 1\n")
    digests = [catalog.digest_code(root)]
    (root / "reports" / "a.py").write_text("x = 2\n")
    digests.append(catalog.digest_code(root))
    (root / "replicator" / "a.py").write_text("x = 2\n")
    digests.append(catalog.digest_code(root))
    (root / "workloads" / "a.py").rename(root / "workloads" / "b.py")
    digests.append(catalog.digest_code(root))

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
