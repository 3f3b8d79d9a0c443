"""What container this process runs in, and of which image.

A process cannot ask Docker for its image. Podman writes the id of the image into a
file; elsewhere whoever starts the container passes it in ``REPLICATOR_IMAGE``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "REPLICATOR_IMAGE"
_ID = re.compile(r"(?:sha256:)?(?P<id>[0-9a-f]{64})")
_OF_PODMAN: Final = "run/.containerenv"
_PODMAN_ID = re.compile(r'^imageid="(?P<id>[0-9a-f]{64})"$', re.MULTILINE)
# By what is there; the first that fits. Inside Kubernetes there is also an engine.
_VARIABLES: Final = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_FILES: Final = {
    "run/secrets/kubernetes.io": "kubernetes",
    _OF_PODMAN: "podman",
    ".dockerenv": "docker",
}


def read(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> str | None:
    """Kind and image, such as ``docker sha256:0123...``; None outside of one."""
    environ = os.environ if environ is None else environ
    kinds = ["apptainer"] * any(environ.get(name) for name in _VARIABLES)
    kinds += [kind for name, kind in _FILES.items() if (root / name).exists()]
    image = image_of(root, environ)
    if not kinds and not image:
        return None
    return " ".join(filter(None, [kinds[0] if kinds else "container", image]))


def image_of(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> str:
    """Returns the id of the image, such as ``sha256:0123...``; empty if unknown."""
    text = (os.environ if environ is None else environ).get(VARIABLE, "")
    if text:
        found = _ID.fullmatch(text)
        if found is None:
            raise PlanError(
                f"{VARIABLE}={text[:100]!r} is no id of an image: 64 hexadecimal"
                " digits, after sha256: or alone; take it from 'docker image inspect"
                " --format {{.Id}} NAME'"
            )
        return f"sha256:{found['id']}"
    try:
        found = _PODMAN_ID.search((root / _OF_PODMAN).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    return f"sha256:{found['id']}" if found else ""
