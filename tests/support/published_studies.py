"""The published studies: their records, unpacked once per process."""

import atexit
import functools
import shutil
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "reports"
NAMES = sorted(path.parent.name for path in SITE.glob("studies/*/records.zip"))


@functools.cache
def _folder():
    folder = Path(tempfile.mkdtemp(prefix="published-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def study(name):
    """Returns the folder of a published study; tests copy what they change."""
    with zipfile.ZipFile(SITE / "studies" / name / "records.zip") as records:
        records.extractall(_folder())
    return _folder() / name
