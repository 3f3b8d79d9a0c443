"""Prints the requirements of the first lock that the second does not have."""

import re
import sys
from pathlib import Path

first, second = (
    re.split(r"\n(?=\S)", Path(name).read_text(encoding="utf-8").strip())
    for name in sys.argv[1:]
)
print("\n".join(block for block in first if block not in second))
