"""Writes the files of the client into a folder, to be copied beside a program.

python -m harness.client FOLDER
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FILES: Final = ("scaling_client.py", "scaling_callbacks.py")


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 2 if there is no such folder."""
    folder = Path(arguments[0]) if len(arguments) == 1 else None
    if folder is None or not folder.is_dir():
        sys.stderr.write(
            "error: usage: python -m harness.client FOLDER, a folder that exists; it"
            f" gets {' and '.join(FILES)}\n"
        )
        return 2
    for name in FILES:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)
        sys.stdout.write(f"{folder / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
