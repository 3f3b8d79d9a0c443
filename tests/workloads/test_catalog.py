"""The catalogue: facts for the planner, without TensorFlow."""

import importlib
import json
import subprocess
import sys

import case_cluster
import fork_server
import pytest

from workloads import catalog, child_process
from workloads.resnet50 import config

TIMEOUT_SEC = 300
_PLANNER_SCRIPT = """
import json, sys
from workloads import catalog
errors = []
for call in (
    lambda: catalog.check_data("resnet50", "imagnet2012"),
    lambda: catalog.check_data("resnet50", "imagenet2012"),
    lambda: catalog.check_data("resnet50", "imagenet_resized/65x65"),
    lambda: catalog.make_config("resnet50", "laptop", {"image_sise": 64}),
):
    try:
        call()
    except ValueError as error:
        errors.append(str(error))
catalog.check_data("resnet50", "digits")
catalog.make_config("resnet50", "laptop", {"image_size": 96})
print(json.dumps([errors, "tensorflow" in sys.modules, "keras" in sys.modules]))
"""


@pytest.fixture(scope="module")
def planner():
    """What a planning process says to bad names, and what it had to import."""
    done = subprocess.run(
        [sys.executable, "-c", _PLANNER_SCRIPT],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def test_checks_import_no_tensorflow(planner):
    _, imports_tensorflow, imports_keras = planner

    assert not imports_tensorflow
    assert not imports_keras


def test_unknown_data_set_offers_close_matches(planner):
    message = planner[0][0]

    assert message.startswith("data 'imagnet2012' is unknown: allowed are 'digits'")
    assert "did you mean 'imagenet2012'" in message
    assert "\n" not in message


def test_unprepared_data_set_names_the_command(planner):
    message = planner[0][1]

    assert message.startswith("data 'imagenet2012' is not prepared under ")
    assert "run 'tfds build imagenet2012 --data_dir " in message
    assert "--data digits" in message


def test_unknown_data_config_lists_configs(planner):
    message = planner[0][2]

    assert "its configs are '8x8', '16x16', '32x32', '64x64'" in message


def test_unknown_option_lists_options(planner):
    message = planner[0][3]

    assert message.startswith("option 'image_sise' is unknown to resnet50: allowed are")
    assert message.endswith("did you mean 'image_size'?")


def test_a_text_that_is_no_name_is_refused():
    """Paths and blanks are no data set names."""
    with pytest.raises(ValueError, match=r"data '\.\./x y' is not a data set name"):
        catalog.check_data("resnet50", "../x y")


def test_catalogue_and_config_have_the_same_presets():
    """Every preset that the planner offers has a configuration, and no more."""
    info = catalog.WORKLOADS["resnet50"]

    assert [preset.name for preset in info.presets] == list(config.PRESETS)
    assert info.default_preset in config.PRESETS


@pytest.mark.parametrize(
    ("name", "per_replica_batch_size", "fields"),
    [
        (
            "resnet50",
            256,
            {
                "image_size": 224,
                "compute_dtype": "mixed_bfloat16",
                "input_dtype": "uint8",
            },
        ),
        ("sngan", 64, {"image_size": 128, "compute_dtype": "mixed_bfloat16"}),
        ("d4pg", 256, {"observations": "pixels"}),
        ("transformer", 16 * 1024, {"num_layers": 28, "dropout": 0.0}),
    ],
)
def test_presets_for_gpus_are_sized_for_one_h100(name, per_replica_batch_size, fields):
    """Without XLA, which is an option, and with TF32 in what stays float32."""
    (preset,) = [p for p in catalog.WORKLOADS[name].presets if p.name == "gpu"]
    module = importlib.import_module(catalog.WORKLOADS[name].config_module)
    found = module.make_config("gpu", preset.options)

    assert per_replica_batch_size == preset.per_replica_batch_size
    assert fields == {key: getattr(found, key) for key in fields}
    assert ("off", True) == (found.jit, found.tf32)


def test_unknown_preset_lists_presets():
    with pytest.raises(
        ValueError, match=r"preset 'laptob' is unknown .*did you mean 'laptop'\?"
    ):
        catalog.make_config("resnet50", "laptob", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 65}, r"image_size=65 must be a multiple of 32"),
        ({"image_size": "64"}, r"image_size='64' must be an integer"),
        ({"image_size": True}, r"image_size=True must be an integer"),
        ({"zero_gamma": 1}, r"zero_gamma=1 must be true or false"),
        ({"momentum": 1.0}, r"momentum=1\.0 must be at least 0\.0 and below 1\.0"),
        ({"weight_decay": float("nan")}, r"weight_decay=nan must be a finite number"),
        ({"weight_decay": -1}, r"weight_decay=-1\.0 must be at least 0"),
        ({"version": "v2"}, r"version='v2' must be one of 'v1', 'v1\.5'"),
        ({"compute_dtype": "float16"}, r"must be one of 'float32', 'mixed_bfloat16'"),
        ({"version": 1}, r"version=1 must be a string"),
        ({"num_classes": 0}, r"num_classes=0 must be at least 1"),
    ],
)
def test_wrong_option_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        config.make_config("smoke", options)


def test_options_override_the_preset():
    """An option replaces its field and leaves the others; an integer serves a float."""
    made = config.make_config("laptop", {"weight_decay": 0, "version": "v1"})

    assert made.version == "v1"
    assert isinstance(made.weight_decay, float)
    assert made.image_size == config.PRESETS["laptop"].image_size


def test_preparing_leaves_room_for_virtual_devices(tmp_path):
    """The harness prepares before it makes the replicator; an op would be too early.

    In a process that is forked from one that has imported TensorFlow and run no op.
    """
    program = tmp_path / "prepare.py"
    program.write_text(
        "import importlib, replicator; from workloads import catalog\n"
        "for info in catalog.WORKLOADS.values():\n"
        "    workload = importlib.import_module(info.module).WORKLOAD\n"
        "    workload.prepare(data=info.presets[0].data)\n"
        "    print('prepared', info.name)\n"
        "print(replicator.create('tf_mirrored', num_replicas=2).num_replicas)"
    )

    code, output = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env=child_process.environment(case_cluster.ENV),
        log=tmp_path / "log",
        timeout_sec=TIMEOUT_SEC,
    )

    prepared = [f"prepared {name}" for name in catalog.WORKLOADS]
    assert 0 == code, output
    # Without what TensorFlow prints about missing GPUs.
    lines = [x for x in output.splitlines() if x.isdigit() or x.startswith("prepared ")]
    assert [*prepared, "2"] == lines, output
