"""What the server of Kubernetes answers, by ``kubectl`` and its raw paths.

``kubectl`` knows how to reach the server and who is asking, outside of a cluster and in
a pod; raw paths ask it for nothing else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Final

from harness.errors import LaunchError

PROGRAM: Final = "kubectl"
JOBS: Final = "/apis/batch/v1/namespaces/{}/jobs"
JOBSETS: Final = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"
SECRETS: Final = "/api/v1/namespaces/{}/secrets"
PODS: Final = "/api/v1/namespaces/{}/pods"
CLAIMS: Final = "/api/v1/namespaces/{}/persistentvolumeclaims"
STRICT: Final = "fieldValidation=Strict"
_ANSWER_SEC = 30.0


class NotFoundError(LaunchError):
    """An object that the server does not have."""


def check_installed() -> None:
    """Checks that ``kubectl`` can be found."""
    if shutil.which(PROGRAM) is None:
        raise LaunchError(
            f"--launcher kubernetes: {PROGRAM!r} is not in PATH; run the command where"
            " it is (with --nodes above 1, in the image, too), or leave --launcher out"
        )


def namespace() -> str:
    """Returns the namespace that ``kubectl`` uses where none is given."""
    words = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
    try:
        return _run(words) or "default"
    except LaunchError:  # no configuration: it may find the server without
        return "default"


def create(path: str, made: dict[str, Any], *queries: str) -> dict[str, Any]:
    """Creates an object; returns what the server made of it."""
    raw = f"{path}?{'&'.join((STRICT, *queries))}"
    return _parsed(_run(["create", "--raw", raw, "--filename=-"], json.dumps(made)))


def get(path: str) -> dict[str, Any]:
    """Returns an object or a list."""
    return _parsed(get_text(path))


def get_text(path: str) -> str:
    """Returns what the server has at a path, such as a log."""
    return _run(["get", "--raw", path])


def delete(path: str) -> None:
    """Deletes an object, and in the background what it owns; harmless without it."""
    try:
        _run(["delete", "--raw", f"{path}?propagationPolicy=Background"])
    except NotFoundError:
        return


def _parsed(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise LaunchError(f"{PROGRAM} answers no object: {text[:100]!r}")
    return found


def _run(words: list[str], text: str = "") -> str:
    command = [PROGRAM, f"--request-timeout={_ANSWER_SEC:g}s", *words]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=2 * _ANSWER_SEC,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{PROGRAM} does not answer ({error}); check '{PROGRAM} version', then run"
            " the same command again"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        kind = NotFoundError if "(NotFound)" in said else LaunchError
        raise kind(
            f"{PROGRAM} {words[0]} is refused: {said}; change what it names, or check"
            f" '{PROGRAM} auth can-i --list'"
        )
    return done.stdout
