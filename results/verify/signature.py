"""The signature of a seal, made and checked by ``ssh-keygen -Y``."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from results.errors import ResultsError
from results.store import untrusted
from results.store.seal import SEAL_NAME

if TYPE_CHECKING:
    import pathlib

    from results.store.study_store import Store
    from results.verify.check import Check

NAMESPACE: Final = "replicator-harness"
"""What ``ssh-keygen -Y sign -n`` is given."""
_KIND: Final = "signature"
_LONGEST_SEC: Final = 30.0


class SignatureError(ResultsError):
    """Signatures cannot be checked here."""


def compare(store: Store, signers: pathlib.Path | None, check: Check) -> str:
    """Checks the signature; returns who signed the seal, empty if nobody did.

    Args:
      store: The study.
      signers: Whose keys count, as ``allowed_signers`` of ssh-keygen; by default any
        key will do, which is named.
      check: Receives a signature that does not fit, or is missing though whose keys
        count is given.

    Raises:
      SignatureError: There is no ssh-keygen, or no file of signers.
    """
    path = store.root / f"{SEAL_NAME}.sig"
    if not untrusted.is_there(path):
        if signers is not None:
            check.differ(_KIND, path.name, "a signature", "none")
        return ""
    if signers is not None and not signers.is_file():
        raise SignatureError(
            f"--signers {str(signers)!r} is no file; give one with a line for each"
            " signer, as allowed_signers of ssh-keygen(1)"
        )
    try:
        sealed = untrusted.read_bytes(store.root / SEAL_NAME) or b""
        untrusted.read_bytes(path)
    except untrusted.DamagedFileError as error:
        check.differ(_KIND, path.name, "readable", str(error))
        return ""
    common = ["-n", NAMESPACE, "-s", str(path)]
    if signers is None:
        done = _run("check-novalidate", *common, content=sealed)
    else:
        asked = _run("find-principals", "-f", str(signers), "-s", str(path))
        principal = asked.stdout.decode(errors="replace").strip().partition("\n")[0]
        done = _run(
            *("verify", "-f", str(signers), "-I", principal or "nobody", *common),
            content=sealed,
        )
    said = " ".join((done.stdout + done.stderr).decode(errors="replace").split())
    if done.returncode:
        check.differ(_KIND, path.name, "a signature of this seal", said)
        return ""
    return said


def _run(
    verb: str, *arguments: str, content: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", verb, *arguments],  # noqa: S607 - that of the user
            input=content,
            capture_output=True,
            check=False,
            timeout=_LONGEST_SEC,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SignatureError(
            f"the study is signed, and ssh-keygen cannot be run: {error}; install"
            " OpenSSH, or remove the signature"
        ) from error
