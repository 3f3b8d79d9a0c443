"""Builds what a release uploads: ``make dist``.

    python .ci/release/dist.py FOLDER [--twine PROGRAM]

Harness and client, each as a wheel and as a source archive, are built from the commit.
Then again in another folder, the wheels from the source archives: all must be the same
to the byte, so nothing depends on the folder or the day, and an archive lacks nothing.
``FOLDER`` gets them and their digests.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECTS: Final = (".", "harness/client")
"""Folders with a ``pyproject.toml``, the client last."""
MOST_OF_CLIENT: Final = 20_000
"""Bytes of the wheel of the client, which users copy into images and repositories."""
_BUILD: Final = """
import os, sys
from setuptools import build_meta
os.umask(0o022)
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


def commit_time(root: Path) -> str:
    """Returns the time of the commit in seconds, which all files of a wheel get."""
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%ct"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return shown.stdout.strip()


def copy_commit(root: Path, folder: Path) -> None:
    """Writes the files of the commit into a folder, without what is not committed."""
    archive = folder / "commit.tar"
    subprocess.run(
        [
            *("git", "-c", "tar.umask=022", "archive", "--format=tar"),
            *(f"--output={archive}", "HEAD"),
        ],
        cwd=root,
        check=True,
    )
    with tarfile.open(archive) as file:
        # Older versions of Python 3.10 and 3.11 have no filters; the archive is ours.
        file.extractall(folder)  # noqa: S202
    archive.unlink()


def build(
    source: Path, project: str, folder: Path, epoch: str, kind: str = "wheel"
) -> Path:
    """Builds one project."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, kind, str(folder)],
        cwd=source / project,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    built = folder / done.stdout.split()[-1]
    if kind == "sdist":
        _forget_the_day(built, int(epoch))
    return built


def _forget_the_day(archive: Path, epoch: int) -> None:
    """Packs a source archive again: files in order, of nobody, all of one time."""
    with tarfile.open(archive) as old:
        members = sorted(old.getmembers(), key=lambda member: member.name)
        files = [old.extractfile(of) if of.isfile() else None for of in members]
        contents = [file.read() if file else b"" for file in files]
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w") as new,
    ):
        for member, content in zip(members, contents, strict=True):
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, io.BytesIO(content))


def build_all(root: Path, folder: Path, *, is_again: bool = False) -> dict[str, str]:
    """Builds everything from the commit; returns the digests by name."""
    epoch = commit_time(root)
    built = []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "commit"
        source.mkdir()
        copy_commit(root, source)
        for project in PROJECTS:
            archive = build(source, project, folder, epoch, "sdist")
            place = source, project
            if is_again:
                with tarfile.open(archive) as file:
                    file.extractall(name)  # noqa: S202 - it is ours
                place = Path(name), archive.name.removesuffix(".tar.gz")
            built += [archive, build(*place, folder, epoch)]
    return {of.name: hashlib.sha256(of.read_bytes()).hexdigest() for of in built}


def why_not(
    first: Mapping[str, str], second: Mapping[str, str], client_bytes: int
) -> str:
    """Returns why these files are not released; empty if they are."""
    if first != second:
        names = sorted(name for name in first if first[name] != second.get(name))
        return f"two builds of one commit differ: {', '.join(names)}"
    if client_bytes >= MOST_OF_CLIENT:
        return (
            f"the wheel of the client has {client_bytes} bytes, and must have fewer"
            f" than {MOST_OF_CLIENT}"
        )
    return ""


def main(argv: Sequence[str]) -> int:
    """Builds and checks; returns 1 if something is not as it must be."""
    parser = argparse.ArgumentParser(prog="python .ci/release/dist.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--twine", help="checks what an index would show")
    arguments = parser.parse_args(argv)
    # What builds starts in other folders.
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    first = build_all(ROOT, folder)
    with tempfile.TemporaryDirectory() as name:
        second = build_all(ROOT, Path(name), is_again=True)
    files = [folder / name for name in first]
    reason = why_not(first, second, files[-1].stat().st_size)
    if reason:
        sys.stderr.write(f"error: {reason}\n")
        return 1
    if arguments.twine:
        checked = [arguments.twine, "check", "--strict", *map(str, files)]
        if subprocess.run(checked, check=False).returncode:
            return 1
    lines = [f"{digest}  {name}\n" for name, digest in first.items()]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    for file, line in zip(files, lines, strict=True):
        sys.stdout.write(f"{line.rstrip()}  {file.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
