"""Folders of images as a data set; never imports TensorFlow.

The layout is that of TFDS' ``ImageFolder``: ``PATH/<split>/<label>/<image>``.
"""

from __future__ import annotations

import dataclasses
import pathlib

PREFIX = "folder:"
SUFFIXES = (".jpeg", ".jpg", ".png")
TRAIN_SPLIT = "train"
EVALUATION_SPLITS = ("validation", "test")
_LAYOUT = (
    "PATH/<split>/<label>/<image>, with the split 'train' and one of 'validation' and "
    "'test'"
)
_SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Contents of a folder of images."""

    path: pathlib.Path  # The folder.
    labels: tuple[str, ...]  # Labels of the training split, sorted.
    encoding: str | None  # ``jpeg`` or ``png`` if all images are that, else None.


def is_folder(name: str) -> bool:
    """Whether a data set name names a folder."""
    return name.startswith(PREFIX)


def absolute(name: str) -> str:
    """Returns the name with an absolute path, valid in any working directory."""
    return f"{PREFIX}{_path(name).absolute()}"


def read(name: str) -> Contents:
    """Lists a folder of images and checks the first bytes of each."""
    path = _path(name)
    if not path.is_dir():
        raise ValueError(
            f"data {name!r}: {str(path)!r} is not a folder; give one that is laid out "
            f"as {_LAYOUT}"
        )
    splits = [path / TRAIN_SPLIT, *(path / split for split in EVALUATION_SPLITS)]
    splits = [split for split in splits if split.is_dir()]
    if len(splits) < 2 or splits[0].name != TRAIN_SPLIT:  # noqa: PLR2004 - one of each
        raise ValueError(_wrong_layout(name, path))
    labels = {split.name: _folders(split) for split in splits}
    for split in splits:
        _check_labels(name, split, labels)
    encodings = {
        _encoding(name, image)
        for split in splits
        for label in labels[split.name]
        for image in _images(name, split / label)
    }
    return Contents(
        path=path,
        labels=tuple(labels[TRAIN_SPLIT]),
        encoding=encodings.pop() if len(encodings) == 1 else None,
    )


def _path(name: str) -> pathlib.Path:
    path = pathlib.Path(name.removeprefix(PREFIX))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"data {name!r}: there is no home directory of {path.parts[0]!r} here; "
            "write the path without a tilde"
        ) from error


def _folders(path: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def _is_image(path: pathlib.Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _wrong_layout(name: str, path: pathlib.Path) -> str:
    folders = _folders(path)
    flat = [f for f in folders if any(map(_is_image, (path / f).iterdir()))]
    if flat:
        found = f"holds images in {flat[0]!r}, as PATH/<label>/<image>"
        advice = "; move each label's folder into 'train', and some images into 'test'"
    else:
        found = f"holds the folders {folders}" if folders else "holds no folder"
        advice = ""
    return f"data {name!r} {found}, but the expected layout is {_LAYOUT}{advice}"


def _check_labels(name: str, split: pathlib.Path, labels: dict[str, list[str]]) -> None:
    if not labels[split.name]:
        raise ValueError(
            f"data {name!r}: split {split.name!r} is empty: it needs a folder of "
            "images for each label"
        )
    unknown = sorted(set(labels[split.name]) - set(labels[TRAIN_SPLIT]))
    if unknown:
        raise ValueError(
            f"data {name!r}: split {split.name!r} has the label {unknown[0]!r}, which "
            f"is not among the {len(labels[TRAIN_SPLIT])} classes of 'train': add "
            "images of it there, or remove it"
        )


def _images(name: str, label: pathlib.Path) -> list[pathlib.Path]:
    found = sorted(filter(_is_image, label.iterdir()))
    if not found:
        raise ValueError(
            f"data {name!r}: folder {str(label)!r} holds no image: it needs at least "
            f"one file that ends in one of {', '.join(SUFFIXES)}, or remove it"
        )
    return found


def _encoding(name: str, image: pathlib.Path) -> str:
    with image.open("rb") as file:
        start = file.read(8)
    for encoding, signature in _SIGNATURES.items():
        if start.startswith(signature):
            return encoding
    raise ValueError(
        f"data {name!r}: file {str(image)!r} is neither a JPEG nor a PNG, whatever its "
        "name says: replace or remove it"
    )
