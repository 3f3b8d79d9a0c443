"""Writes ``docs/conformance.md`` anew."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]

if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER), str(ROOT), str(ROOT / "tests" / "support")]
    from conformance_cases import matrix

    (ROOT / "docs" / "conformance.md").write_text(
        matrix.render_document(), encoding="utf-8"
    )
