"""Damages a file: bits, bytes, lines, keys and values, or what is in its place."""

import os
import re
import shutil

TOKENS = (
    *(b"", b"\0", b" ", b"\n", b"\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[31m"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"Infinity", b"{}", b"[]", b'""'),
    *(b"0", b"-1", b"-0.0", b"1e999", b"1e-999", b"1e308", b"0.5", b"9" * 5000),
    *(b"9" * 400, b"18446744073709551616", b'"nan"', b'"1e400"', b'"\\ud800"'),
    *(b"[" * 60_000, b'{"a":' * 60_000, b'"' + b"a" * 70_000 + b'"', b"../../../x"),
    *(b'"/etc/passwd"', b'"\\u0000"', b'"<script>"', b"!!python/object:os.system"),
    *(b"[[]]", b"*a", b"&a [*a]", b"'''", b'"""', b"[a.b]\n", b"= 1", b"ok", b"failed"),
)
PLACES = (
    *("directory", "pipe", "loop", "dangling", "endless", "huge", "empty", "removed"),
)
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"(?!\s*:)|(?<![\w."])-?\d[\d.eE+-]*|true|null')
_KEY = re.compile(rb'"(?:[^"\\\n]|\\.)*"(?=\s*:)|^[\w-]+(?=\s*[=:])', re.MULTILINE)
_WAYS = ("value",) * 4 + ("key", "line", "line", "flip", "cut", "drop", "put", "whole")
_ONE_OF_PLACES = 12


def damage(path, chance):
    """Damages a file in one to three ways; returns which."""
    if not chance.randrange(_ONE_OF_PLACES):
        what = chance.choice(PLACES)
        put(path, what)
        return what
    content, ways = path.read_bytes(), []
    for _ in range(chance.randint(1, 3)):
        way = chance.choice(_WAYS)
        content = _damaged(content, way, chance)
        ways.append(way)
    path.write_bytes(content)
    return "+".join(ways)


def _damaged(content, way, chance):
    token, at = chance.choice(TOKENS), chance.randint(0, len(content))
    if way == "line":
        return _with_other_lines(content, token, chance)
    if way == "flip":
        bits = bytearray(content)
        for _ in range(chance.randint(1, 20) if bits else 0):
            bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        return bytes(bits)
    start = end = at
    if way in ("value", "key"):
        pattern = _KEY if way == "key" else _VALUE
        if found := list(pattern.finditer(content)):
            start, end = chance.choice(found).span()
            # Often one that is elsewhere in the file: of a right form, and wrong.
            if chance.randrange(2):
                token = chance.choice(found)[0]
    elif way == "drop":
        end, token = at + chance.randint(1, 50), b""
    elif way == "cut":
        end, token = len(content), b""
    elif way == "whole":
        start, end = 0, len(content)
    return content[:start] + token + content[end:]


def _with_other_lines(content, token, chance):
    lines = content.splitlines(keepends=True) or [b"\n"]
    one, other = (chance.randrange(len(lines)) for _ in range(2))
    how = chance.randrange(4)
    if how == 0:
        lines.insert(other, lines[one])
    elif how == 1:
        del lines[one]
    elif how == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = token + b"\n"
    return b"".join(lines)


def put(path, what):
    """Puts something that is no file in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if what == "directory":
        path.mkdir()
    elif what in ("loop", "dangling", "endless"):
        path.symlink_to(
            {"loop": path.name, "endless": "/dev/zero"}.get(what, "nothing")
        )
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif what == "empty":
        path.touch()
