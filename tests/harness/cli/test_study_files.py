"""Studies as TOML files: equal to options, overridden by them, refused in one line."""

import itertools
import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest
import slurm_cluster
from command_lines import overridden, run_module
from fake_machine import make_gpus, with_cpus

from harness import ExitCode, command_line
from results import Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "studies").rglob("*.toml"))
PUBLISHED = ROOT / "docs" / "schema"

SMALL_FILE = """
workload = "resnet50"
preset = "smoke"
replicas = [1, 2]
mode = "weak"
repeats = 2
order = "sequential"
"""


@pytest.fixture
def plan(succeed):
    return lambda *words: json.loads(succeed("sweep", "--dry-run", "--json", *words))


def ids_of(planned):
    return [trial["trial_id"] for trial in planned["trials"]]


@pytest.fixture
def write(tmp_path):
    def written(text, name="my.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return written


def test_a_file_plans_what_its_options_plan(plan, write, small):
    """Options beside the file override it, and of the workload's only its key."""
    table = '[option]\nversion = "v1"\nimage_size = 64\nzero_gamma = false\n'
    name = write(f'{SMALL_FILE}match = true\nbudget = "window"\n{table}')
    flags = ("--repeats=3", "--no-match", "--budget=none", "--mode=weak,strong")
    own = ("--option=version=v1", "--option=image_size=96", "--option=zero_gamma=false")
    of_file = plan(name, *flags, "--option=image_size=96")
    of_options = plan(*overridden(small, *flags), *own)

    assert ids_of(of_options) == ids_of(of_file)
    assert of_options["study"] == of_file["study"]
    assert [] == of_file["equivalence"]["trials"]
    assert ids_of(plan(*small)) == ids_of(plan(write(SMALL_FILE)))


@pytest.mark.parametrize("value", ["2", '"2"', '"2..2"', "[2]"])
def test_a_list_is_an_array_a_text_or_one_integer(plan, write, value):
    found = plan(write(SMALL_FILE.replace("[1, 2]", value)))

    assert {2} == {trial["spec"]["num_replicas"] for trial in found["trials"]}


def test_the_recorded_command_has_the_effective_settings_and_no_file(
    succeed, plan, write, overrides, tmp_path
):
    own = "match = false\nseed = 1\nallocator = 'default'\n"
    name = write(f"{SMALL_FILE}{own}[option]\nzero_gamma = false\n")
    given = (name, "--repeats=1", "--study=s", "--set=seed=2")
    succeed("sweep", *given, overrides=overrides)
    recorded = Store.open(tmp_path / "runs" / "s").read_plan()
    words = recorded.command[3:]

    assert "sweep" == words[0]
    assert not any(word.endswith(".toml") for word in words)
    assert "--no-match" in words
    settings_of = [of for option, of in itertools.pairwise(words) if option == "--set"]
    assert ["allocator=default", "seed=2"] == settings_of
    pairs = dict(itertools.pairwise(words))
    assert ("1,2", "1", "zero_gamma=false") == tuple(
        pairs[option] for option in ("--replicas", "--repeats", "--option")
    )
    assert ids_of(plan(*words[1:])) == [trial.trial_id for trial in recorded.trials]


BAD_FILES = [
    ('workloads = "x"', r"unknown key 'workloads'; did you mean 'workload'\?"),
    ("frobnicate = 1", r"unknown key 'frobnicate'; allowed are the options of 'sweep'"),
    ("[options]\njit = 1", r"unknown table \[options\]; did you mean 'option'\?"),
    ('repeats = "5"', r"repeats is '5', but must be an integer from 1 to \d+"),
    ("repeats = true", r"repeats is True, but must be an integer from 1 to"),
    ("timeout = 90", r"timeout is 90, but must be text with a unit, such as \"90s\","),
    ('match = "yes"', r"match is 'yes', but must be true or false"),
    ("device = 'tpu'", r"device is 'tpu', but must be one of 'cpu', 'gpu'"),
    ("replicas = [1, 0]", r"--replicas: '0' in '1,0' is not positive"),
    ("[option]\n'a=b' = 1", r"\[option\] has the key 'a=b'; use the name of an option"),
    ("mode = weak", r"is not TOML: .*line 7.*text are in double quotes"),
    ('data = "a\\u0007"', r"argument 'a\\x07': '\\x07' is a control character"),
    (f"data = {'[' * 5000}", r"nested too deeply; the only table is \[option\]"),
    (f"seed = {'9' * 5000}", r"is not TOML: Exceeds the limit"),
    # Keys of an earlier version.
    ('data-dir = "/data"', "data-dir is no longer a key: set TFDS_DATA_DIR"),
    ("minutes = 12", "minutes is no longer a key: use time-budget, a text with"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_file_that_is_no_study_is_one_line_and_exit_2(refuse, write, text, message):
    known = [
        line for line in SMALL_FILE.splitlines() if line[:6] != text.lstrip("[")[:6]
    ]
    name = write("\n".join([*known, text]))
    err = refuse("sweep", name)

    assert re.search(message, err), err


def test_a_file_that_cannot_be_read_is_one_line(harness, write, tmp_path):
    write(SMALL_FILE, "laptop.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    (tmp_path / "large.toml").write_bytes(b"#" * (2**20 + 1))
    for name, message in {
        "labtop.toml": r"'labtop.toml' does not exist; did you mean 'laptop.toml'\?",
        "xyz": r"'xyz' does not exist; those of this project are in studies/",
        "laptop.toml/x": r"'laptop.toml/x' does not exist",
        ".": r"'\.': it is not a regular file; give a TOML file",
        "latin.toml": r"'latin.toml': 'utf-8' codec .* in position 2.*file in UTF-8",
        "large.toml": r"'large.toml': 1048577 bytes, at most 1048576 are read; give",
        # Opened, and then not read, by an error that has no path.
        "/proc/self/mem": r"cannot read '/proc/\d+/mem': Input/output error; nothing",
    }.items():
        code, out, err = harness("sweep", "--dry-run", name)

        assert (ExitCode.USAGE, "") == (code, out)
        assert 1 == err.count("\n")
        assert re.search(message, err), err


SCHEMA = json.loads((PUBLISHED / "study.schema.json").read_text(encoding="ascii"))


def test_every_option_of_sweep_is_a_key_and_every_key_an_option(refuse):
    options = {
        max(of.opts, key=len)[2:]
        for of in command_line.commands["sweep"].params
        if of.param_type_name == "option"
    }
    known = refuse("sweep", "--set=x=1").rstrip().partition("known are ")[2]
    keys = set(known.split(", "))
    assert (options - {"json", "dry-run", "set"}) | keys == set(SCHEMA["properties"])
    assert {"replicas", "option", "match", "runs-dir"} <= options
    assert {"seed", "nodes"} <= keys
    assert 32 >= len(options)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (SMALL_FILE, True),
        ('replicas = "1..8x2"\ntimeout = "60s"\n[option]\njit = "compute"', True),
        ("replica = 1", False),
        ("timeout = 0", False),
    ],
)
def test_the_schema_accepts_what_the_command_line_accepts(text, is_valid):
    validator = jsonschema.Draft202012Validator(SCHEMA)

    assert is_valid == validator.is_valid(tomllib.loads(text))


# The documentation site imports it.
@pytest.mark.filterwarnings("ignore:'harness.cli.documents' found in sys.modules")
def test_what_is_generated_is_up_to_date(tmp_path, capsys):
    """Run ``python -m harness.cli.documents docs/schema`` after changing it."""
    kinds = ("study", "plan", "spec", "env", "status", "result", "client")

    assert 0 == run_module("harness.cli.documents", str(tmp_path))
    assert {f"{kind}.schema.json" for kind in kinds} == {
        path.name for path in tmp_path.iterdir()
    }
    for path in map(Path, capsys.readouterr().out.splitlines()):
        assert path.read_text() == (PUBLISHED / path.name).read_text()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert 2 == run_module("harness.cli.documents", str(tmp_path / "no"))
    assert "usage: python -m harness.cli.documents FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_study_can_be_planned(path, succeed, install_gpus, monkeypatch):
    """With eight GPUs; memory and OpenGL for D4PG are those of another machine."""
    install_gpus(make_gpus(8))
    monkeypatch.setattr("workloads.d4pg.capacity.check", lambda *_, **__: None)
    asked = tomllib.loads(path.read_text(encoding="utf-8"))
    is_varied = "vary" in asked
    more = () if is_varied else ("--json",)
    words = ("sweep", "--dry-run", *more, str(path))
    out = succeed(*words, overrides=with_cpus(range(2)))
    assert [] == list(Path().iterdir())
    if is_varied:
        key, _, values = asked["vary"].partition("=")
        found = re.findall(rf"^runs/.*/{key}-(\S+): \d+ trials of", out, re.MULTILINE)
        assert values.replace(":", "-").split(",") == found
        return
    specs = [trial["spec"] for trial in json.loads(out)["trials"]]
    assert {asked["workload"]} == {spec["workload"] for spec in specs}
    assert {asked.get("device", "cpu")} == {spec["device"] for spec in specs}
    assert {asked["preset"]} == {spec["preset"] for spec in specs}
    if isinstance(asked.get("replicas"), list):
        assert {*asked["replicas"]} == {spec["num_replicas"] for spec in specs}


def test_a_job_gets_the_settings_of_the_file_and_not_the_file(
    harness, write, monkeypatch, tmp_path_factory
):
    submitted_to = slurm_cluster.install_stand_ins(
        tmp_path_factory.mktemp("slurm"), monkeypatch
    )
    name = write(f'{SMALL_FILE}launcher = "slurm"\n')
    monkeypatch.setattr("sys.argv", ["harness", "sweep", name, "--set=seed=3"])
    code, out, err = harness("sweep", name, "--set=seed=3")
    script = submitted_to.read_text()

    assert (ExitCode.OK, "42\n") == (code, out), err
    assert name not in script
    assert "--workload resnet50" in script
    assert "--set seed=3" in script
