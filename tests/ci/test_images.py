"""The images: from the locks, with hashes, for a user without rights."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "Dockerfile": "requirements-image.lock",
    "Dockerfile.gpu": "requirements-image-gpu.lock",
}


def instructions(name: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile with their arguments."""
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.partition(" ") for line in joined.splitlines() if line)
    return [(word, rest) for word, _, rest in split]


@pytest.mark.parametrize("name", LOCKS)
def test_packages_are_those_of_the_lock_checked_by_hash(name: str) -> None:
    """Nothing else is installed by pip, and nothing is resolved."""
    installs = [rest for word, rest in instructions(name) if "pip install" in rest]
    lock, own = installs

    assert f"--require-hashes --requirement {LOCKS[name]}" in lock
    assert own.endswith("--no-deps --no-build-isolation --editable .")
    assert "--no-deps" in lock


@pytest.mark.parametrize("name", LOCKS)
def test_the_program_runs_as_a_user_without_rights(name: str) -> None:
    """The last user is not root, and the program starts after that."""
    words = [word for word, _ in instructions(name)]
    users = [rest for word, rest in instructions(name) if word == "USER"]

    assert ["1000:1000"] == users
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert max(i for i, word in enumerate(words) if word == "RUN") < words.index("USER")


@pytest.mark.parametrize("name", LOCKS)
def test_what_an_image_copies_is_there_and_not_ignored(name: str) -> None:
    """The build context has the packages and nothing else."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        source
        for word, rest in instructions(name)
        if word == "COPY"
        for source in rest.split()[:-1]
    ]

    assert "*" in ignored
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) <= {line[1:] for line in ignored if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"benchmarks"} <= set(sources)


@pytest.mark.parametrize("name", LOCKS)
def test_an_image_has_no_secret_and_no_address(name: str) -> None:
    """Packages come from whatever index the builder has."""
    text = (ROOT / name).read_text(encoding="utf-8").lower()

    assert not re.search(r"://|password|token|secret|index-url", text)


def test_both_images_are_built_in_the_same_way() -> None:
    """They differ in the lock and in variables for the driver."""
    cpu, gpu = (instructions(name) for name in LOCKS)
    as_cpu = [
        (word, rest.replace("requirements-image-gpu.lock", "requirements-image.lock"))
        for word, rest in gpu
    ]

    assert [a for a in cpu if a[0] != "ENV"] == [b for b in as_cpu if b[0] != "ENV"]
    (variables,) = (rest for word, rest in gpu if word == "ENV")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in variables


def test_the_dev_container_is_a_stage_of_the_image() -> None:
    """The same tools and user; `make setup` installs the lock with its hashes."""
    path = ROOT / ".devcontainer" / "devcontainer.json"
    container = json.loads(path.read_text(encoding="utf-8"))
    build = container["build"]

    assert (path.parent / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    stages = [rest for word, rest in instructions("Dockerfile") if word == "FROM"]
    assert any(stage.endswith(f" AS {build['target']}") for stage in stages)
    assert "harness" == container["remoteUser"]
    assert "make setup" == container["postCreateCommand"]
