"""Fails where a package has more lines or files than its ceiling in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

root = Path(__file__).resolve().parents[1]
ceilings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ceilings"]
too_much = False
for package, (most_lines, most_files) in ceilings.items():
    listed = subprocess.check_output(
        ["git", "ls-files", f"{package}/*.py"], cwd=root, text=True
    ).split()
    files = [path for name in listed if (path := root / name).exists()]
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    if lines > most_lines or len(files) > most_files:
        too_much = True
        print(
            f"{package}: {lines} lines in {len(files)} files, but at most {most_lines} "
            f"in {most_files} (pyproject.toml, [tool.ceilings]); merge or take away"
        )
sys.exit(too_much)
