"""Writes the picture of README: the first screen of the published page of ResNet-50.

    python tests/browser/write_picture.py

Needs a Chromium (``CHROMIUM=PATH`` where it has another name). The picture carries the
digest of the part of the page that it shows, so a test without a browser tells whether
it is as old as the page.
"""

import hashlib
import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image, PngImagePlugin

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reports/studies/resnet50-two-cores/index.html"
PICTURE = ROOT / "docs/images/report.png"
DIGEST = "first screen"
_WIDTH = 1280
_NUM_COLOURS = 64
_SHOWN = ('<section id="verdict"', "</section>")
_MARGIN = 16
_BOTTOM = """Math.ceil(Math.max(...[...document.querySelectorAll(
    "#verdict .trust li, #verdict .hero")].map(
    (element) => element.getBoundingClientRect().bottom)))"""


def digest_of(page):
    """Returns the digest of what the picture shows of a page."""
    begin, end = _SHOWN
    shown = page.partition(begin)[2].partition(end)[0]
    if not shown:
        raise ValueError(f"the page has no {begin}...{end}")
    return hashlib.sha256(shown.encode()).hexdigest()


def digest_in(picture):
    """Returns the digest that a picture carries."""
    with Image.open(picture) as image:
        return image.info.get(DIGEST)


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
    """Writes the picture; returns the exit code."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.stderr.write(
            "error: no Chromium; apt-get install chromium, or set CHROMIUM\n"
        )
        return 2
    facts = PngImagePlugin.PngInfo()
    facts.add_text(DIGEST, digest_of(PAGE.read_text(encoding="utf-8")))
    with Image.open(io.BytesIO(screenshot(PAGE, chromium))) as image:
        few = image.convert("RGB").quantize(_NUM_COLOURS, dither=Image.Dither.NONE)
        few.save(PICTURE, pnginfo=facts, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
