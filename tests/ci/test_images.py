"""The image: from the locks, with hashes, for a user without rights."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def instructions():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.partition(" ") for line in joined.splitlines() if line)
    return [(word, rest) for word, _, rest in split]


def test_packages_are_those_of_the_locks_checked_by_hash():
    *locks, own = [rest for _, rest in instructions() if "pip install" in rest]

    for rest, name in zip(
        locks, ("requirements.lock", "requirements-gpu.lock"), strict=True
    ):
        assert f"--no-deps --require-hashes --requirement {name}" in rest
    assert own.endswith("--no-deps --no-build-isolation --editable .")


def test_each_device_has_a_stage():
    stages = [
        rest.rpartition(" ")[2] for word, rest in instructions() if word == "FROM"
    ]

    assert ["tools", "packages-cpu", "packages-gpu", "packages-${DEVICE}"] == stages


def test_the_program_runs_as_a_user_without_rights():
    words = [word for word, _ in instructions()]
    users = [rest for word, rest in instructions() if word == "USER"]

    assert ["1000:1000"] == users
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert max(i for i, word in enumerate(words) if word == "RUN") < words.index("USER")


def test_what_an_image_copies_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY"
        for source in rest.split()[:-1]
    ]

    assert "*" in ignored
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) <= {line[1:] for line in ignored if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"benchmarks"} <= set(sources)


def test_an_image_has_no_secret_and_no_address():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").lower()

    assert not re.search(r"://|password|token|secret|index-url", text)


def test_the_dev_container_is_a_stage_of_the_image():
    path = ROOT / ".devcontainer" / "devcontainer.json"
    container = json.loads(path.read_text(encoding="utf-8"))
    build = container["build"]

    assert (path.parent / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert any(stage.endswith(f" AS {build['target']}") for stage in stages)
    assert "harness" == container["remoteUser"]
    assert "make setup" == container["postCreateCommand"]
