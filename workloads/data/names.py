"""Which TFDS data sets exist and which are prepared here; never imports TensorFlow.

A data set is named as TFDS names it: ``name``, ``name/config`` or
``name/config:version``; a folder of images is ``folder:PATH``. Prepared data sets are
looked up in the directory of TFDS (``TFDS_DATA_DIR``, else ``~/tensorflow_datasets``);
the embedded ``digits`` have a separate directory (``REPLICATOR_DATA_DIR``).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import pathlib
import re
from typing import Any

from workloads.spec import SYNTHETIC

# The layout is that of TFDS' ``ImageFolder``: ``PATH/<split>/<label>/<image>``.

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


def absolute_folder(name: str) -> str:
    """Returns the name with an absolute path, valid in any working directory."""
    return f"{PREFIX}{_folder_path(name).absolute()}"


def read_folder(name: str) -> Contents:
    """Lists a folder of images and checks the first bytes of each."""
    path = _folder_path(name)
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


def _folder_path(name: str) -> pathlib.Path:
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


DIGITS = "digits"
BUILTIN = (DIGITS, SYNTHETIC)

_NAME = re.compile(
    r"(?P<dataset>[A-Za-z_]\w*)(/(?P<config>[\w.\-]+))?(:(?P<version>\d+\.\d+\.\d+))?"
)
_MOST_SUGGESTIONS = 3
_IMAGE_RANK = 3
_CHANNELS = ("1", "3", "4")


def cache_dir() -> pathlib.Path:
    """Returns where the embedded data sets are prepared.

    ``REPLICATOR_DATA_DIR`` if set, else ``~/.cache/replicator-harness/tfds``.
    """
    configured = os.environ.get("REPLICATOR_DATA_DIR")
    if configured:
        return pathlib.Path(configured)
    return pathlib.Path.home() / ".cache" / "replicator-harness" / "tfds"


def tfds_dir() -> pathlib.Path:
    """Returns the directory of the data sets that the user prepared."""
    configured = os.environ.get("TFDS_DATA_DIR")
    if configured:
        return pathlib.Path(configured)
    return pathlib.Path.home() / "tensorflow_datasets"


def check(name: str) -> None:
    """Raises unless ``name`` is a data set that can be read on this machine."""
    if is_folder(name):
        read_folder(name)
    elif name not in BUILTIN:
        find_prepared(name)


def find_prepared(name: str) -> pathlib.Path:
    """Returns the directory of a prepared TFDS data set of labelled images."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"data {name!r} is not a data set name: allowed are {_builtin_text()}, a "
            "TFDS name such as 'imagenet2012' or 'imagenet_resized/64x64', or "
            "'folder:PATH'"
        )
    dataset = match["dataset"]
    root = tfds_dir()
    found = _prepared_versions(root, dataset, match["config"], match["version"])
    if not found:
        _check_is_known(name, dataset, match["config"])
        raise ValueError(
            f"data {name!r} is not prepared under {str(root)!r}: run 'tfds build "
            f"{name} --data_dir {root}', which {_effort(dataset)} (or set "
            "TFDS_DATA_DIR to its directory), or use --data digits, which needs no "
            "download"
        )
    path = max(found, key=lambda version: tuple(map(int, version.name.split("."))))
    _check_features(name, path)
    return path


def _effort(dataset: str) -> str:
    """Describes what preparing a data set takes, as far as TFDS knows it offline."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_cls(dataset)
    num_bytes = sum(info.size for info in (builder.url_infos or {}).values())
    size = f"up to {_gigabytes(num_bytes)} GB" if num_bytes else "an unknown amount"
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        return (
            f"takes {size} that you download by hand into downloads/manual there, and "
            "writes the set beside it"
        )
    return f"downloads {size} and writes the set beside it"


def _gigabytes(num_bytes: int) -> str:
    """Formats with two digits or more, such as 0.17, 19 and 155."""
    size = num_bytes / 1e9
    return f"{size:.0f}" if size >= 10 else f"{size:.2g}"  # noqa: PLR2004 - two digits


def _builtin_text() -> str:
    return ", ".join(repr(name) for name in BUILTIN)


def _prepared_versions(
    root: pathlib.Path, dataset: str, config: str | None, version: str | None
) -> list[pathlib.Path]:
    wanted = version or "*.*.*"
    places = [root / dataset / config] if config else [root / dataset]
    if config is None:
        default_config = _default_config(dataset)
        if default_config is not None:
            places = [root / dataset / default_config]
    return [
        path
        for place in places
        for path in place.glob(wanted)
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name)
        and (path / "dataset_info.json").is_file()
    ]


def _configs(dataset: str) -> list[str] | None:
    """Returns the configs of a data set that TFDS knows, or None if it knows none."""
    # TFDS imports TensorFlow lazily, so the planner may query it for names.
    import tensorflow_datasets as tfds

    if dataset not in tfds.list_builders(with_community_datasets=False):
        return None
    return [config.name for config in tfds.builder_cls(dataset).BUILDER_CONFIGS]


def _default_config(dataset: str) -> str | None:
    configs = _configs(dataset)
    return configs[0] if configs else None


def _check_is_known(name: str, dataset: str, config: str | None) -> None:
    import tensorflow_datasets as tfds

    configs = _configs(dataset)
    if configs is None:
        known = [*BUILTIN, *tfds.list_builders(with_community_datasets=False)]
        close = difflib.get_close_matches(dataset, known, n=_MOST_SUGGESTIONS)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"data {name!r} is unknown: allowed are {_builtin_text()} or the name of a "
            f"TFDS image classification set{hint}"
        )
    if config is not None and config not in configs:
        allowed = ", ".join(map(repr, configs)) or "none, so leave it out"
        raise ValueError(
            f"data {name!r} names the config {config!r}, which {dataset!r} does not "
            f"have: its configs are {allowed}"
        )


def _check_features(name: str, path: pathlib.Path) -> None:
    """Raises unless the examples at ``path`` have an image and a class label."""
    try:
        described = json.loads((path / "features.json").read_text(encoding="utf-8"))
        features = described["featuresDict"]["features"]
        kinds = {key: _kind(value) for key, value in features.items()}
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"data {name!r} at {str(path)!r} has no readable features.json "
            f"({type(error).__name__}): prepare it again with 'tfds build {name} "
            "--overwrite'"
        ) from error
    if (kinds.get("image"), kinds.get("label")) != ("Image", "ClassLabel"):
        held = ", ".join(f"{key} ({kind})" for key, kind in sorted(kinds.items()))
        raise ValueError(
            f"data {name!r} is not an image classification set: its examples need "
            f"'image' (Image) and 'label' (ClassLabel), but they hold {held}"
        )
    image = features["image"]["image"]
    dimensions = image.get("shape", {}).get("dimensions", [])
    is_shape_fine = len(dimensions) == _IMAGE_RANK and dimensions[-1] in _CHANNELS
    if not is_shape_fine or image.get("dtype") != "uint8":
        shape = ", ".join("?" if size == "-1" else size for size in dimensions)
        raise ValueError(
            f"data {name!r} has images of shape [{shape}] and type "
            f"{image.get('dtype')}, but needed are [height, width, channels] with 1, 3 "
            "or 4 channels of uint8: choose another data set"
        )


def _kind(feature: dict[str, Any]) -> str:
    return str(feature["pythonClassName"]).rpartition(".")[2]
