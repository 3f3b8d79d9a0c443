"""Writes the picture of README: the first screen of the published page of ResNet-50.

    python tests/browser/write_picture.py

Needs a Chromium (``CHROMIUM=PATH`` where it has another name).
"""

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reports/studies/resnet50-two-cores/index.html"
PICTURE = ROOT / "docs/images/report.png"
_WIDTH = 1280
_NUM_COLOURS = 128
_MARGIN = 16
_BOTTOM = """Math.ceil(Math.max(...[...document.querySelectorAll(
    "#verdict .notes, #verdict .hero")].map(
    (element) => element.getBoundingClientRect().bottom)))"""


def screenshot(page, chromium):
    """Returns the first screen as PNG, down to its marks and its figure."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport={"width": _WIDTH, "height": 900})
        shown.goto(page.as_uri())
        height = shown.evaluate(_BOTTOM) + _MARGIN
        shown.set_viewport_size({"width": _WIDTH, "height": height})
        content = shown.screenshot()
        browser.close()
    return content


def main():
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.stderr.write(
            "error: no Chromium; apt-get install chromium, or set CHROMIUM\n"
        )
        return 2
    with Image.open(io.BytesIO(screenshot(PAGE, chromium))) as image:
        few = image.convert("RGB").quantize(_NUM_COLOURS, dither=Image.Dither.NONE)
        few.save(PICTURE, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
