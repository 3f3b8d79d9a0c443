"""A trial runs the sources that it is planned with, wherever the harness is started."""

import sys

import pytest

from harness.run import trial_tree
from harness.trial import process_tree

pytestmark = pytest.mark.processes
PROBE = "import pathlib, sys\npathlib.Path(sys.argv[-1], 'said').write_text({name!r})\n"


def test_the_current_folder_does_not_replace_the_sources(tmp_path, monkeypatch):
    """Python looks there first; a gate would have compared a tree with itself."""
    for name in ("here", "planned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "probe.py").write_text(PROBE.format(name=name))
    (tmp_path / "here" / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trial_dir = tmp_path / "here" / "trial"
    variables = {
        "PYTHONPATH": str(tmp_path / "planned"),
        process_tree.MARKER: str(trial_dir),
    }

    tree = trial_tree.ProcessTree(
        trial_dir.relative_to(tmp_path / "here"),
        variables,
        (sys.executable, "-m", "probe"),
    )
    ended = trial_tree.run_tree(tree, timeout_sec=60)

    assert 0 == ended.exit_code
    assert "planned" == (trial_dir / "said").read_text()


def test_paths_of_the_environment_are_absolute(
    make_spec, tmp_path, monkeypatch, one_core
):
    """A trial has another current folder than the user who set them."""
    from harness.placement import allocation

    monkeypatch.chdir(tmp_path)
    place = allocation.place(
        one_core, num_replicas=1, cores_per_replica=1, device="cpu"
    )
    base = {"PYTHONPATH": "own:/lib", "TFDS_DATA_DIR": "data"}

    found = trial_tree.trial_variables(make_spec(), place, tmp_path, base=base)

    assert f"{tmp_path}/own" in found["PYTHONPATH"].split(":")
    assert str(tmp_path / "data") == found["TFDS_DATA_DIR"]
