"""Which TFDS data sets exist and which are prepared here; never imports TensorFlow.

A data set is named as TFDS names it: ``name``, ``name/config`` or
``name/config:version``; a folder of images is ``folder:PATH``. Prepared data sets are
looked up in the directory of TFDS (``TFDS_DATA_DIR``, else ``~/tensorflow_datasets``).
"""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import re

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


def read_folder(name: str) -> tuple[dict[str, list[tuple[str, str]]], str | None]:
    """Returns path and label of each image by split, and the common encoding."""
    path = _folder_path(name)
    if not path.is_dir():
        raise ValueError(
            f"data {name!r}: {str(path)!r} is not a folder; give one that is laid out "
            f"as {_LAYOUT}"
        )
    splits = [path / split for split in (TRAIN_SPLIT, *EVALUATION_SPLITS)]
    splits = [split for split in splits if split.is_dir()]
    if len(splits) < 2 or splits[0].name != TRAIN_SPLIT:  # noqa: PLR2004 - one of each
        raise ValueError(_wrong_layout(name, path))
    classes, encodings = _folders(splits[0]), set()
    paths: dict[str, list[tuple[str, str]]] = {}
    for split in splits:
        labels = _folders(split)
        if not labels:
            raise ValueError(
                f"data {name!r}: split {split.name!r} is empty: it needs a folder of "
                "images for each label"
            )
        if unknown := sorted(set(labels) - set(classes)):
            raise ValueError(
                f"data {name!r}: split {split.name!r} has the label {unknown[0]!r}, "
                f"which is not among the {len(classes)} classes of 'train': add images "
                "of it there, or remove it"
            )
        paths[split.name] = []
        for label in labels:
            images = sorted(filter(_is_image, (split / label).iterdir()))
            if not images:
                raise ValueError(
                    f"data {name!r}: folder {str(split / label)!r} holds no image: it "
                    f"needs at least one file that ends in one of "
                    f"{', '.join(SUFFIXES)}, or remove it"
                )
            encodings |= {_encoding(name, image) for image in images}
            paths[split.name] += [(str(image), label) for image in images]
    return paths, encodings.pop() if len(encodings) == 1 else None


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
        what = f"holds images in {flat[0]!r}, as PATH/<label>/<image>"
        advice = "; move each label's folder into 'train', and some images into 'test'"
    else:
        what = f"holds the folders {folders}" if folders else "holds no folder"
        advice = ""
    return f"data {name!r} {what}, but the expected layout is {_LAYOUT}{advice}"


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
_BUILTIN_TEXT = ", ".join(map(repr, BUILTIN))

_NAME = re.compile(
    r"(?P<dataset>[A-Za-z_]\w*)(/(?P<config>[\w.\-]+))?(:(?P<version>\d+\.\d+\.\d+))?"
)
_MOST_SUGGESTIONS = 3
_IMAGE_RANK = 3
_CHANNELS = ("1", "3", "4")


def cache_dir() -> pathlib.Path:
    """Returns ``REPLICATOR_DATA_DIR``, else a folder in ``~/.cache``."""
    if configured := os.environ.get("REPLICATOR_DATA_DIR"):
        return pathlib.Path(configured)
    return pathlib.Path.home() / ".cache" / "replicator-harness" / "tfds"


def check(name: str) -> str:
    """Returns the name of data that this machine can read, with an absolute path."""
    if name.startswith(PREFIX):
        read_folder(name)
        return f"{PREFIX}{_folder_path(name).absolute()}"
    if name not in BUILTIN:
        find_prepared(name)
    return name


def find_prepared(name: str) -> pathlib.Path:
    """Returns the directory of a prepared TFDS data set of labelled images."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"data {name!r} is not a data set name: allowed are {_BUILTIN_TEXT}, a "
            "TFDS name such as 'imagenet2012' or 'imagenet_resized/64x64', or "
            "'folder:PATH'"
        )
    dataset, config = match["dataset"], match["config"]
    configured = os.environ.get("TFDS_DATA_DIR")  # of the sets that the user prepared
    root = pathlib.Path(configured or pathlib.Path.home() / "tensorflow_datasets")
    # TFDS imports TensorFlow lazily, so the planner may query it for names.
    import tensorflow_datasets as tfds

    builders = tfds.list_builders(with_community_datasets=False)
    configs = None
    if dataset in builders:
        configs = [each.name for each in tfds.builder_cls(dataset).BUILDER_CONFIGS]
    folder = root / dataset / (config or (configs or [""])[0])
    prepared = [
        folder / str(version)
        for version in tfds.core.utils.version.list_all_versions(folder)
        if str(version) == (match["version"] or str(version))
        and (folder / str(version) / "dataset_info.json").is_file()
    ]
    if prepared:
        _check_features(name, prepared[-1])
        return prepared[-1]
    if configs is None:
        close = difflib.get_close_matches(
            dataset, [*BUILTIN, *builders], n=_MOST_SUGGESTIONS
        )
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"data {name!r} is unknown: allowed are {_BUILTIN_TEXT} or the name of a "
            f"TFDS image classification set{hint}"
        )
    if config is not None and config not in configs:
        allowed = ", ".join(map(repr, configs)) or "none, so leave it out"
        raise ValueError(
            f"data {name!r} names the config {config!r}, which {dataset!r} does not "
            f"have: its configs are {allowed}"
        )
    raise ValueError(
        f"data {name!r} is not prepared under {str(root)!r}: run 'tfds build "
        f"{name} --data_dir {root}' (or set TFDS_DATA_DIR to its directory), or use "
        "--data digits, which needs no download"
    )


def _check_features(name: str, path: pathlib.Path) -> None:
    """Raises unless the examples at ``path`` have an image and a class label."""
    try:
        described = json.loads((path / "features.json").read_text(encoding="utf-8"))
        features = described["featuresDict"]["features"]
        kinds = {
            key: str(value["pythonClassName"]).rpartition(".")[2]
            for key, value in features.items()
        }
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
