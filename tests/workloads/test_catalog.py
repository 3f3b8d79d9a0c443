"""The catalogue: facts and checks for the planner, without TensorFlow."""

import json
import re
import subprocess
import sys

import case_cluster
import fork_server
import pytest

from workloads import catalog, child_process

PLANNER = """
import json, sys
from workloads import catalog
errors = []
for name, data in json.loads(sys.argv[1]):
    try: catalog.check_data(name, data)
    except ValueError as error: errors.append(str(error))
catalog.check_data("resnet50", "digits")
catalog.check_data("d4pg", "walker:run")
for name, info in catalog.WORKLOADS.items():
    catalog.make_config(name, info.default_preset, {})
print(json.dumps([errors, sorted({"tensorflow", "keras"} & set(sys.modules))]))
"""
# Names of data, and what is said of them.
UNKNOWN = [
    (
        ("resnet50", "imagnet2012"),
        r"^data 'imagnet2012' is unknown: allowed are 'digits'.* mean 'imagenet2012'",
    ),
    (
        ("resnet50", "imagenet2012"),
        r"^data 'imagenet2012' is not prepared under .*'tfds build .*--data digits",
    ),
    (("resnet50", "imagenet_resized/65x65"), r"its configs are '8x8', '16x16', '32x32"),
    (("resnet50", "../x y"), r"data '\.\./x y' is not a data set name"),
    (
        ("transformer", "digits"),
        r"data 'digits' is not a text: use 'tensorflow_source'",
    ),
    (("d4pg", "cartpole"), r"^data 'cartpole' must be a domain and a task .*cartpole:"),
    (("d4pg", "cartpole-swingup"), r"with a colon .* did you mean 'cartpole:swingup'"),
    (
        ("d4pg", "cartpole:swing"),
        r"is unknown: 'cartpole' has the tasks 'cartpole:balance', .* mean '.*:swingup",
    ),
    (
        ("d4pg", "cartpoole:balance"),
        r"the domains of the control suite are 'acrobot', .* mean 'cartpole:balance'",
    ),
    (("d4pg", "x:y"), r"are 'acrobot', .*'walker'$"),
]


def test_misspelt_data_are_answered_with_the_nearest_and_without_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", PLANNER, json.dumps([names for names, _ in UNKNOWN])],
        check=True,
        capture_output=True,
        text=True,
    )
    errors, imported = json.loads(done.stdout)

    assert [] == imported
    for (_, message), error in zip(UNKNOWN, errors, strict=True):
        assert re.search(message, error)
        assert "\n" not in error


@pytest.mark.parametrize("name", catalog.WORKLOADS)
def test_catalogue_and_workload_say_the_same(name):
    """Every preset that the planner offers has a configuration; each metric is once."""
    info = catalog.WORKLOADS[name]
    metrics = info.metrics

    assert all(preset.config is not None for preset in info.presets)
    assert info.default_preset in [preset.name for preset in info.presets]
    assert len(metrics) == len({metric.name for metric in metrics})
    assert all(metric.title and metric.protocol for metric in metrics)
    assert any(not metric.is_of_window for metric in metrics)


def test_a_workload_that_cannot_queue_steps_says_why():
    """The planner refuses; a step has ended when it is dispatched."""
    reasons = {name: info.syncs_because for name, info in catalog.WORKLOADS.items()}

    assert {"resnet50": "", "sngan": ""}.items() <= reasons.items()
    assert reasons["d4pg"]


IN_16_BITS = {"compute_dtype": "mixed_bfloat16"}


@pytest.mark.parametrize(
    ("name", "batch_size", "fields"),
    [
        ("resnet50", 256, {"image_size": 224, "input_dtype": "uint8", **IN_16_BITS}),
        ("sngan", 64, {"image_size": 128, **IN_16_BITS}),
        ("d4pg", 256, {"observations": "pixels"}),
        ("transformer", 16 * 1024, {"num_layers": 28, "dropout": 0.0}),
        ("keras_fit", None, {}),
    ],
)
def test_presets_for_gpus_are_sized_for_one_h100(name, batch_size, fields):
    """Without XLA, which is an option, and with TF32 in float32 layers.

    Data are synthetic: eight threads that decode would bound eight GPUs. Nobody else
    writes the variables, which other presets do not promise.
    """
    presets = {preset.name: preset for preset in catalog.WORKLOADS[name].presets}
    preset = presets["gpu"]
    found = catalog.make_config(name, "gpu", {})

    assert batch_size in (None, preset.per_replica_batch_size)
    assert catalog.SYNTHETIC == preset.data
    expected = {"jit": "off", "tf32": True, **fields}
    assert expected == {key: getattr(found, key) for key in expected}
    promises = {
        n for n, p in presets.items() if p.options.get("external_writes") == "never"
    }
    assert {"gpu"} == promises


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
            r"'float16' must be one of 'float32', 'mixed_bf",
        ),
        (
            {"image_sise": 64},
            r"^option 'image_sise' is unknown to resnet50: .* you mean 'image_size'\?$",
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
        ({"compute_dtype": "mixed_float16"}, r"must be one of 'float32', 'mixed_bfl"),
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
        ({"num_evaluation_episodes": 1}, r"must be at least 2"),
    ],
    "transformer": [
        ({"width": 15}, r"width=15 must be even, for pairs of sinusoids, and a"),
        ({"width": 10, "num_heads": 4}, r"num_heads=4, which share it: use for exam"),
        ({"sequence_length": 2048}, r"sequence_length=2048 must be at least 2 and "),
        ({"dropout": 1.0}, r"dropout=1\.0 must be at least 0\.0 and below 1\.0"),
        ({"compute_dtype": "mixed_float16"}, r"one of 'float32', 'mixed_bfloat"),
        (
            {"pipeline_stages": 7},
            r"=7 is more than the 6 parts of a model of num_layers=4, .* at most 6",
        ),
        ({"pipeline_stages": 0}, r"pipeline_stages=0 must be at least 1"),
        ({"num_microbatches": 0}, r"num_microbatches=0 must be at least 1"),
        (
            {"pipeline_stages": 2, "schedule": "zigzag"},
            r"'zigzag' must be one of 'one_forward_one_backward', 'fill_drain'",
        ),
        (
            {"pipeline_stages": 2, "jit": "compute"},
            r"jit='compute' .* is many calls of its stages: use jit 'off', or",
        ),
        (
            {"pipeline_stages": 2, "sharded_update": "parameters"},
            r"='parameters' stores each variable on one .*'gradients', or",
        ),
        ({"recompute": True}, r"recompute=True has no effect without a pipeline: set"),
        ({"schedule": "fill_drain"}, r"'fill_drain' has no effect without a pipeline"),
    ],
    "keras_fit": [
        ({"model": "ResNet5"}, r"model='ResNet5' must be one of 'ConvNeXtTiny', "),
        ({"model": "no.py:make"}, r"cannot read 'no.py': No such file .* FILE.py:FUNC"),
        ({"model": "Xception"}, r"option image_size=32 must be at least 71"),
        ({"loop": "train"}, r"loop='train' must be one of 'fit', 'run'"),
        ({"input_dtype": "uint8"}, r"input_dtype='uint8' must be one of 'float32'"),
        ({"jit": "compute"}, r"compile\(\) of Keras takes a whole step or nothing"),
    ],
}
REFUSED_OF_IMAGES = [
    ({"input_dtype": "int8"}, r"input_dtype='int8' must be one of 'float32', 'uint8'"),
    ({"conv_layout": "nchw"}, r"conv_layout='nchw' must be one of 'auto', 'nhwc'"),
    (
        {"conv_layout": "nhwc", "jit": "compute"},
        r"^option conv_layout='nhwc' has no effect with jit='compute', where XLA ",
    ),
    (
        {"jit": "compute", "batch_norm": "cross_replica"},
        r"with batch_norm='cross_replica' would need collectives .*: use batch",
    ),
]
REFUSED_OF_ALL = [
    ({"jit": "all"}, r"option jit='all' must be one of 'off', 'compute'"),
    ({"jit": True}, r"option jit=True must be a string"),
    ({"tf32": "on"}, r"option tf32='on' must be true or false"),
    ({"external_writes": "no"}, r"external_writes='no' must be one of 'detect', 'nev"),
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
    plain = catalog.make_config("resnet50", "laptop", {})
    made = catalog.make_config("resnet50", "laptop", {"weight_decay": 0})

    assert isinstance(made.weight_decay, float)
    assert made.image_size == plain.image_size
    with pytest.raises(
        ValueError, match=r"preset 'laptob' is unknown .*did you mean 'laptop'\?"
    ):
        catalog.make_config("resnet50", "laptob", {})


def test_preparing_leaves_room_for_virtual_devices(tmp_path):
    """The harness prepares before it makes the replicator; an op would be too early.

    In a process that is forked from one that has imported TensorFlow and run no op.
    """
    program = tmp_path / "prepare.py"
    program.write_text(
        "import replicator; from workloads import catalog\n"
        "for info in catalog.WORKLOADS.values():\n"
        "    info.prepare(data=info.presets[0].data)\n"
        "    print('prepared', info.name)\n"
        "print(replicator.create('tf_mirrored', num_replicas=2).num_replicas)"
    )

    code, output = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env=child_process.environment(case_cluster.ENV),
        log=tmp_path / "log",
        timeout_sec=300,
    )

    prepared = [f"prepared {name}" for name in catalog.WORKLOADS]
    assert 0 == code, output
    # Without what TensorFlow prints about missing GPUs.
    lines = [x for x in output.splitlines() if x.isdigit() or x.startswith("prepared ")]
    assert [*prepared, "2"] == lines, output
