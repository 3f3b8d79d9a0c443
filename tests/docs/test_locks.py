"""The two locks agree, and name content, not places."""

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-gpu.lock")
LENGTHS = {
    "requirements.lock": 100,
    "requirements-gpu.lock": 10,
    "tests/programs/communities.lock": 15,
    ".ci/release/twine.lock": 15,
    "tests/harness/client/callbacks.lock": 25,
}
ELSEWHERE = {"pytest", "torch", "jax", "flax", "optax", "mpi4py"}
"""Of programs, plugins and peers, each in an environment of its own."""
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def requirements_of(name):
    """Returns the hashes of each requirement of a lock, markers included."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text.strip())
    return {block.partition(" \\\n")[0]: set(_HASH.findall(block)) for block in blocks}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_lock_has_versions_with_hashes_and_nothing_else(name):
    """No URL, no index, no option: any mirror works."""
    found = requirements_of(name)

    assert len(found) > LENGTHS[name]
    assert [] == [text for text, hashes in found.items() if not hashes]
    pinned = re.compile(r"[a-z0-9][a-z0-9._-]*==[\w.]+( ; .+)?")
    assert [] == [text for text in found if not pinned.fullmatch(text)]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^-|index|@", text, re.MULTILINE)


def test_the_lock_for_gpus_adds_libraries_of_cuda_only():
    cpu, gpu = (requirements_of(name) for name in LOCKS)

    assert set() == gpu.keys() & cpu.keys()
    assert [] == [text for text in gpu if not text.startswith("nvidia-")]
    for library in ("cudnn", "nccl", "cuda-runtime", "cublas"):
        assert any(text.startswith(f"nvidia-{library}-cu12==") for text in gpu)


def test_an_image_has_each_package_that_is_imported():
    """In every module of every package, also within functions."""
    names = {text.split("==")[0] for text in requirements_of("requirements.lock")}
    found = metadata.packages_distributions()
    lacking = {}
    for package in ("replicator", "workloads", "harness", "results", "reports"):
        for path in (ROOT / package).rglob("*.py"):
            for module in imported(path) - ELSEWHERE:
                packages = {
                    re.sub("[-_.]+", "-", of).lower() for of in found.get(module, ())
                }
                if packages and not packages & {*names, "replicator-harness"}:
                    lacking[module] = str(path.relative_to(ROOT))

    assert {} == lacking


def imported(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_what_ci_runs_needs_no_libraries_of_cuda():
    """They are several gigabytes that a machine without a GPU cannot use."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([a-z-]+|\$\(\w+\)): ([^#\n]*)", makefile, re.MULTILINE))

    assert "make test " in (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "setup" == rules["test"].strip()
    assert "$(STAMP)" == rules["setup"].strip()
    assert "requirements-gpu.lock" not in rules["$(STAMP)"]
    assert "requirements-gpu.lock" in rules["$(STAMP_GPU)"]
