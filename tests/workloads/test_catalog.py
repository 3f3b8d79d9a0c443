"""The catalogue: facts for the planner, without TensorFlow."""

import importlib
import json
import re
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
    assert [False, False] == planner[1:]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            0,
            (
                r"^data 'imagnet2012' is unknown: allowed are 'digits'.*"
                r"did you mean 'imagenet2012'[^\n]*$"
            ),
        ),
        (
            1,
            (
                r"^data 'imagenet2012' is not prepared under .*run 'tfds build "
                r"imagenet2012 --data_dir .*--data digits"
            ),
        ),
        (2, r"its configs are '8x8', '16x16', '32x32', '64x64'"),
        (
            3,
            (
                r"^option 'image_sise' is unknown to resnet50: allowed are.*"
                r"did you mean 'image_size'\?$"
            ),
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_what_is_allowed(planner, index, message):
    assert re.search(message, planner[0][index])


@pytest.mark.parametrize("name", catalog.WORKLOADS)
def test_catalogue_and_workload_say_the_same(name):
    """Every preset that the planner offers has a configuration, and no more."""
    info = catalog.WORKLOADS[name]
    presets = importlib.import_module(info.config_module).PRESETS
    workload = importlib.import_module(info.module).WORKLOAD

    assert [preset.name for preset in info.presets] == list(presets)
    assert info.default_preset in presets
    assert (info.name, info.version, info.example_unit) == (
        workload.name,
        workload.version,
        workload.example_unit,
    )


def test_a_text_that_is_no_name_is_refused():
    with pytest.raises(ValueError, match=r"data '\.\./x y' is not a data set name"):
        catalog.check_data("resnet50", "../x y")


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


# By workload: options, and what is said of them.
REFUSED = {
    "resnet50": [
        ({"image_size": 65}, r"image_size=65 must be a multiple of 32"),
        ({"image_size": "64"}, r"image_size='64' must be an integer"),
        ({"image_size": True}, r"image_size=True must be an integer"),
        ({"zero_gamma": 1}, r"zero_gamma=1 must be true or false"),
        ({"momentum": 1.0}, r"momentum=1\.0 must be at least 0\.0 and below 1\.0"),
        ({"weight_decay": float("nan")}, r"weight_decay=nan must be a finite number"),
        ({"weight_decay": -1}, r"weight_decay=-1\.0 must be at least 0"),
        ({"version": "v2"}, r"version='v2' must be one of 'v1', 'v1\.5'"),
        ({"version": 1}, r"version=1 must be a string"),
        ({"num_classes": 0}, r"num_classes=0 must be at least 1"),
        ({"batch_norm": "global"}, r"batch_norm='global' must be one of 'local', 'cro"),
        (
            {"compute_dtype": "float16"},
            r"compute_dtype='float16' must be one of 'float32', 'mixed_bfloat16'",
        ),
    ],
    "sngan": [
        ({"image_size": 24}, r"image_size=24 must be 4 times a power of two"),
        ({"image_size": 4}, r"image_size=4 must be 4 times a power of two"),
        ({"layout": "stl"}, r"layout='stl' must be one of 'cifar', 'imagenet'"),
        ({"batch_norm": "global"}, r"batch_norm='global' must be one of 'local'"),
        ({"num_metric_examples": 50}, r"num_metric_examples=50 must be at least 100"),
        (
            {"num_metric_examples": 2048, "extractor": "inception"},
            r"num_metric_examples=2048 must be above 2048 with extractor 'inception'",
        ),
        (
            {"layout": "imagenet", "generator_channels": 10},
            r"generator_channels=10 must be a multiple of 4",
        ),
        ({"ema_decay": 1.0}, r"ema_decay=1.0 must be at least 0.0 and below 1.0"),
        ({"extractor": "clip"}, r"extractor='clip' must be one of 'digits', 'incept"),
        (
            {"compute_dtype": "mixed_float16"},
            r"='mixed_float16' must be one of 'float32', 'mixed_bfloat16'",
        ),
    ],
    "d4pg": [
        ({"observations": "sound"}, r"must be one of 'state', 'pixels'"),
        ({"network": "cnn"}, r"must be one of 'mlp', 'layer_norm_mlp'"),
        ({"policy_sizes": "300;200"}, r"policy_sizes='300;200' must be the units"),
        ({"critic_sizes": "0"}, r"critic_sizes='0' must be the units of each layer"),
        ({"network": "mlp", "critic_sizes": "400"}, r"must have two sizes or more"),
        ({"num_atoms": 1}, r"num_atoms=1 must be at least 2"),
        ({"lowest_return": 150.0}, r"must be below highest_return=150\.0"),
        ({"noise_low": 0.0}, r"noise_low=0\.0 must be above 0 and at most noise_high"),
        ({"noise_low": 2.0}, r"noise_low=2\.0 must be above 0 and at most noise_high"),
        ({"discount": 1.5}, r"discount=1\.5 must be at least 0\.0 and at most 1\.0$"),
        ({"actor_niceness": 20}, r"actor_niceness=20 must be .* below 20"),
        ({"min_replay_size": 10**7}, r"=10000000 is more than the 19558 transitions"),
        ({"replay_capacity": 50}, r"=50 keeps 25 environment steps of each environm"),
        ({"num_evaluation_episodes": 1}, r"must be at least 2"),
        ({"num_actor": 3}, r"did you mean 'num_actors'\?"),
    ],
    "transformer": [
        ({"width": 15}, r"width=15 must be even, for pairs of sinusoids, and a"),
        ({"width": 10, "num_heads": 4}, r"num_heads=4, which share it: use for exam"),
        ({"sequence_length": 2048}, r"sequence_length=2048 must be at least 2 and "),
        ({"dropout": 1.0}, r"dropout=1\.0 must be at least 0\.0 and below 1\.0"),
        ({"compute_dtype": "mixed_float16"}, r"one of 'float32', 'mixed_bfloat"),
        ({"num_layer": 2}, r"did you mean 'num_layers'\?"),
    ],
}
REFUSED_OF_IMAGES = [
    ({"input_dtype": "int8"}, r"input_dtype='int8' must be one of 'float32', 'uint8'"),
    ({"conv_layout": "nchw"}, r"conv_layout='nchw' must be one of 'auto', 'nhwc'"),
    (
        {"conv_layout": "nhwc", "jit": "compute"},
        (
            r"^option conv_layout='nhwc' has no effect with jit='compute', where XLA "
            r"chooses the layout of each convolution: leave one of the two out$"
        ),
    ),
    (
        {"jit": "compute", "batch_norm": "cross_replica"},
        (
            r"option jit='compute' with batch_norm='cross_replica' would need "
            r"collectives .*: use batch_norm 'local', or jit 'off'$"
        ),
    ),
]
REFUSED_OF_ALL = [
    ({"jit": "all"}, r"option jit='all' must be one of 'off', 'compute'"),
    ({"jit": True}, r"option jit=True must be a string"),
    ({"tf32": "on"}, r"option tf32='on' must be true or false"),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, *row) for name, rows in REFUSED.items() for row in rows),
        *((name, *r) for name in ("resnet50", "sngan") for r in REFUSED_OF_IMAGES),
        *((name, *row) for name in catalog.WORKLOADS for row in REFUSED_OF_ALL),
    ],
)
def test_wrong_option_values_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        catalog.make_config(name, "smoke", options)


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
