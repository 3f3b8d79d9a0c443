"""Text of pages and terminals as a reader sees it."""

import re

from reports.words import formats


def plain(text):
    """Returns text with usual spaces."""
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def visible(html):
    """Returns the text of a page, without its tags."""
    return plain(" ".join(re.sub(r"<[^>]+>", " ", html).split()))
