"""What a release uploads, and what others run from it: action, component, quick start.

The wheel is built from the working tree, as ``make dist`` builds it from the commit.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from command_lines import commit, git

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

from release import dist, quick_start  # noqa: E402  # scripts, not a package

ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
COMPONENT = ROOT / "docs" / "gitlab" / "gate.yml"
PACKAGES = ("harness", "replicator", "reports", "results", "workloads")
DATA = (".html", ".css", ".js", ".j2", ".yaml", ".pyi")
BLOCKED = "raise ImportError('TensorFlow is not here')"
# Its rate is its own claim, and hardly varies: a gate of two repetitions is enough.
PROGRAM = """
import random, sys
noise = random.Random(f"{sys.argv[1]} {COST}")
for step in range(5):
    print("rate $:", 1e5 / COST * noise.gauss(1, 1e-4), flush=True)
"""
INPUTS = {
    "command": "python3 program.py {seed}",
    "metric": r"throughput=rate \$: ([0-9.]+)",
    "setup": 'echo "it\'s $((1 + 1))" > .prepared',
    "arguments": "--repeats\n3\n",
    "baseline": "HEAD^",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the working tree, of the harness and of the client."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", *PACKAGES],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = ["pyproject.toml", "README.md", "LICENSE", *listed.stdout.split("\0")]
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    folder = tmp_path_factory.mktemp("wheels")
    return [dist.build(source, of, folder, "1700000000") for of in dist.PROJECTS]


def read(wheel):
    """The names of the files of a wheel, and its metadata."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        return names, file.read(metadata).decode()


def test_the_wheel_has_every_file_that_the_packages_read(wheels):
    """Templates, styles, scripts, references, modules; it requires no TensorFlow."""
    found, metadata = read(wheels[0])
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {*DATA, ".py"} and "peers" not in path.parts
    }
    required = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    extra = {line for line in required if "extra ==" in line}

    assert len(wanted) > 300
    assert set() == wanted - found
    assert any("tensorflow==" in line for line in extra)
    always = set(required) - extra
    assert not [line for line in always if re.search("tensorflow|keras|control", line)]


def test_the_client_is_small_and_needs_nothing(wheels):
    """Two files, under 20 kB, for Python 3.8 and later."""
    names, metadata = read(wheels[1])

    modules = {name for name in names if name.endswith(".py")}
    assert {"scaling_client.py", "scaling_callbacks.py"} == modules
    assert dist.MOST_OF_CLIENT > wheels[1].stat().st_size
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.8" in metadata


def test_a_source_archive_is_the_same_on_another_day(tmp_path):
    """And the wheel that is built from it is that of the tree."""
    built = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        source = folder / "source"
        source.mkdir(parents=True)
        for name in ("pyproject.toml", "scaling_client.py", "scaling_callbacks.py"):
            shutil.copy(ROOT / "harness" / "client" / name, source / name)
            os.utime(source / name, (1, len(built)))
        built.append(dist.build(source, ".", folder, "1700000000", "sdist"))
    with tarfile.open(built[0]) as file:
        file.extractall(tmp_path)
    unpacked = built[0].name.removesuffix(".tar.gz")
    wheels = [
        dist.build(of, ".", of, "1700000000")
        for of in (tmp_path / "first" / "source", tmp_path / unpacked)
    ]

    assert built[0].read_bytes() == built[1].read_bytes()
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.parametrize(
    ("second", "size", "reason"),
    [
        ({"a": "1", "b": "2"}, 100, ""),
        ({"a": "1", "b": "3"}, 100, "two builds of one commit differ: b"),
        ({"a": "1"}, 100, "differ: b"),
        ({"a": "1", "b": "2"}, 20_000, "has 20000 bytes, and must have fewer"),
    ],
)
def test_wheels_that_differ_or_are_large_are_not_released(second, size, reason):
    """Each for its reason."""
    found = dist.why_not({"a": "1", "b": "2"}, second, size)

    assert bool(reason) == bool(found)
    assert reason in found


def test_the_folder_may_be_relative(tmp_path, monkeypatch, capsys):
    """As make gives it; what builds starts in other folders."""
    monkeypatch.chdir(tmp_path)

    def build(_root, folder, **_options):
        monkeypatch.chdir("/")
        (folder / "client.whl").write_bytes(b"123")
        return {"client.whl": "00"}

    monkeypatch.setattr(dist, "build_all", build)

    assert 0 == dist.main(["dist"])
    assert "00  client.whl  3 bytes\n" == capsys.readouterr().out
    assert "00  client.whl\n" == (tmp_path / "dist" / "SHA256SUMS").read_text()


def test_the_quick_start_is_that_of_the_readme():
    """Its first sweep, of a program that needs nothing; another README is an error."""
    words = quick_start.quick_start((ROOT / "README.md").read_text(encoding="utf-8"))

    assert ["sweep", "--command"] == words[:2]
    assert "python3 train.py {replicas} {per_replica_batch_size}" == words[2]
    assert "--metric" in words
    with pytest.raises(SystemExit, match="the README has no sweep of a command"):
        quick_start.quick_start("# Another\n")


@pytest.fixture
def own(tmp_path):
    """A repository of somebody's, whose last commit made the program 10 % slower."""
    root = tmp_path / "own"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    (root / ".gitignore").write_text(".prepared\n")
    for cost in (100, 110):
        (root / "program.py").write_text(f"COST = {cost}\n{PROGRAM}")
        commit(root, f"take-{cost}")
    return root


@pytest.fixture
def environ(tmp_path, wheels):
    """The environment of a job: pip has no network, and TensorFlow is blocked."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("tensorflow", "keras"):
        (blocked / f"{name}.py").write_text(BLOCKED)
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": folders,
        "HOME": os.environ["HOME"],
        "PYTHONPATH": str(blocked),
        "PIP_NO_COMPILE": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PACKAGE": str(wheels[0]),
    }


def add_what_pip_would_resolve(environment):
    """Lets an environment see the installed dependencies, and not this tree."""
    (site,) = environment.glob("lib/python*/site-packages")
    installed = [path for path in sys.path if path.endswith("-packages")]
    (site / "installed.pth").write_text("\n".join(installed))


def inputs_of(declared):
    """Returns the inputs of a job: those above, and the defaults of the others."""
    return {
        name: INPUTS.get(name, of.get("default", "")) for name, of in declared.items()
    }


def evaluated(text, inputs):
    """Returns a value of a pipeline with its inputs; other expressions are empty."""
    text = re.sub(
        r"\$(?:\[\[|\{\{) inputs\.([\w-]+) (?:\]\]|\}\})",
        lambda of: inputs[of[1]],
        text,
    )
    return re.sub(r"\$\{\{.*?\}\}", "", text)


def run(shell, script, folder, environ):
    return subprocess.run(
        [*shell, "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_each_step_of_the_action_runs(own, environ, tmp_path):
    """From another repository, with the wheel: +10 % fails the job, with its files."""
    text = ACTION.read_text(encoding="utf-8")
    action = yaml.safe_load(text)
    inputs = inputs_of(action["inputs"])
    output, summary = tmp_path / "output", tmp_path / "summary"
    environ |= {
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    (tmp_path / "temp").mkdir()
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
    install, judge = action["runs"]["steps"]
    variables = {name: evaluated(of, inputs) for name, of in judge["env"].items()}
    assert [] == [name for name in inputs if f"inputs.{name} " not in text]

    done = run(shell, install["run"], own, environ)
    assert 0 == done.returncode, done.stderr
    add_what_pip_would_resolve(tmp_path / "temp" / "gate-environment")
    done = run(shell, judge["run"], own, {**environ, **variables})
    said = dict(line.split("=") for line in output.read_text().splitlines())
    folder = Path(said["folder"])

    assert 1 == done.returncode, done.stdout + done.stderr
    assert "1" == said["exit-code"]
    assert tmp_path / "temp" == folder.parent
    assert "REGRESS" in summary.read_text()
    assert "::error" in done.stdout
    assert [*ET.parse(folder / "gate.xml").getroot().iter("failure")]
    assert (folder / "published" / "gate.zip").is_file()
    assert not (own / ".prepared").exists()


# In place of the harness, whose gate is run above: reads the command line as it does,
# and writes what was asked for.
STAND_IN = """
import pathlib, sys
sys.path.insert(0, {root!r})
from harness import command_line
subcommand, *words = sys.argv[1:]
values = command_line.commands[subcommand].make_context(subcommand, list(words)).params
written = ("junit=", "markdown=", "gate/published/")
for word in ("gate/runs/gate/gate.json", *words):
    if word.startswith(written) or word.endswith("gate.json"):
        path = pathlib.Path(word.rpartition("=")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(repr(values))
sys.exit(subcommand == "gate")
"""


@pytest.mark.processes
def test_the_script_of_the_component_runs(own, environ):
    """As a runner does, in the checkout; the folder of the job is no change of it.

    A regression is one of the accepted exit codes here.
    """
    header, job = yaml.safe_load_all(COMPONENT.read_text(encoding="utf-8"))
    inputs = inputs_of(header["spec"]["inputs"])
    (content,) = job.values()
    for name, of in content["variables"].items():
        assert isinstance(of, str) or of["expand"] is False
        environ[name] = evaluated(of if isinstance(of, str) else of["value"], inputs)
    environ["ACCEPTED"] = "3 1"
    install, judge = content["script"]
    assert install.startswith("python3 -m venv gate/environment\n")
    assert "gate/environment/bin/python -m pip install" in install
    programs = own / "gate" / "environment" / "bin"
    programs.mkdir(parents=True)
    program = programs / "replicator-harness"
    program.write_text(f"#!{sys.executable}{STAND_IN.format(root=str(ROOT))}")
    program.chmod(0o755)

    done = run(["sh", "-e"], judge, own, environ)

    assert 0 == done.returncode, done.stdout + done.stderr
    asked = (own / "gate" / "gate.md").read_text()
    for value in ("HEAD^", INPUTS["command"], INPUTS["setup"]):
        assert repr(value) in asked
    assert (own / "gate" / "published" / "gate.zip").is_file()
    for path in content["artifacts"]["paths"]:
        assert (own / path).exists()
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=own, capture_output=True, check=True
    )
    assert b"" == status.stdout


def test_action_and_component_have_the_same_inputs():
    """And the same defaults; a component says more of its job."""
    of_action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]
    header, _ = yaml.safe_load_all(COMPONENT.read_text(encoding="utf-8"))
    of_component = header["spec"]["inputs"]

    assert {"job", "stage", "image"} == {*of_component} - {*of_action}
    assert {"working-directory"} == {*of_action} - {*of_component}
    for name in {*of_action} & {*of_component}:
        assert of_action[name].get("default") == of_component[name].get("default")
