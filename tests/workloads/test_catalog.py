"""The catalogue: facts and checks for the planner, without TensorFlow."""

import json
import re
import subprocess
import sys

import case_cluster
import fork_server
import pytest

import workloads
from workloads import (
    WORKLOADS,
    child_environment,
    d4pg,
    data,
    metrics,
    peers,
    resnet50,
    sngan,
)

PLANNER = """
import json, sys
from workloads import WORKLOADS
errors = []
for name, data in json.loads(sys.argv[1]):
    try: WORKLOADS[name].check_data(data)
    except ValueError as error: errors.append(str(error))
WORKLOADS["resnet50"].check_data("digits")
WORKLOADS["d4pg"].check_data("walker:run")
for info in WORKLOADS.values():
    info.make_config(info.default_preset, {})
print(json.dumps([errors, sorted({"tensorflow", "keras"} & set(sys.modules))]))
"""
# Names of data, and what is said of them.
UNKNOWN = r"""
resnet50     imagnet2012             'imagnet2012' is unknown: allowed are 'digits'
resnet50     imagenet2013            is unknown: .* did you mean 'imagenet2012'
resnet50     imagenet2012            is not prepared under '(.+)': run 'tfds build imag
resnet50     imagenet2012            --data_dir .+' \(.+\), or use --data digits, which
resnet50     imagenet_resized/64x64  '(.+)': run 'tfds build \S+/64x64 --data_dir \1' \(
resnet50     imagenet_resized/65x65  its configs are '8x8', '16x16', '32x32
resnet50     ../x_y!                 data '\.\./x_y!' is not a data set name
transformer  digits                  'digits' is not a text: use 'tensorflow_source'
d4pg         cartpole                ^data 'cartpole' must be a domain and a task
d4pg         cartpole-swingup        with a colon .* did you mean 'cartpole:swingup'
d4pg         cartpole:swing          has the tasks 'cartpole:balance', .* mean '.*:sw
d4pg         cartpoole:balance       are 'acrobot', .* mean 'cartpole:balance'
d4pg         x:y                     are 'acrobot', .*'walker'$
"""
ROWS = [line.split(maxsplit=2) for line in UNKNOWN.strip().splitlines()]


def test_misspelt_data_are_answered_with_the_nearest_and_without_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", PLANNER, json.dumps([names for *names, _ in ROWS])],
        check=True,
        capture_output=True,
        text=True,
    )
    errors, imported = json.loads(done.stdout)

    assert [] == imported
    for (*_, message), error in zip(ROWS, errors, strict=True):
        assert re.search(message, error)
        assert "\n" not in error


@pytest.mark.parametrize("name", WORKLOADS)
def test_catalogue_and_workload_say_the_same(name):
    info = WORKLOADS[name]
    metrics = info.metrics

    assert all(preset.config is not None for preset in info.presets)
    assert info.default_preset in [preset.name for preset in info.presets]
    assert len(metrics) == len({metric.name for metric in metrics})
    assert all(metric.title and metric.protocol for metric in metrics)
    assert any(not metric.is_of_window for metric in metrics)


PACKAGES = [workloads, d4pg, data, metrics, peers, resnet50, sngan]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda of: of.__name__)
def test_public_names_are_there_and_say_what_they_are(package):
    """They are loaded on first use, so a wrong line of a stub is seen here only."""
    found = {name: getattr(package, name) for name in package.__all__}

    assert found
    assert [] == [name for name, public in found.items() if not public.__doc__]
    with pytest.raises(AttributeError, match=r"attribute .*nobody"):
        _ = package.nobody


def test_presets_for_gpus_promise_what_others_do_not():
    for info in WORKLOADS.values():
        presets = {preset.name: preset for preset in info.presets}
        found = info.make_config("gpu", {})
        promises = {
            n for n, p in presets.items() if p.options.get("external_writes") == "never"
        }

        assert {"gpu"} == promises
        assert "synthetic" == presets["gpu"].data
        assert ("off", True) == (found.jit, found.tf32)


# Of a preset's data, batch and settings: Goyal 2017, 5.1; Tassa et al. 2018, section 5,
# and the D4PG paper where that says nothing.
PAPERS = {
    "resnet50": {
        "data": "imagenet2012",
        "per_replica_batch_size": 32,
        "image_size": 224,
        "version": "v1.5",
        "zero_gamma": True,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "learning_rate_per_256": 0.1,
        "lr_warmup_epochs": 5.0,
        "shuffle_buffer_size": 16_384,
        "num_input_threads": 8,
    },
    "d4pg": {
        "num_atoms": 101,
        "lowest_return": -150.0,
        "highest_return": 150.0,
        "policy_layers": (300, 200),
        "critic_layers": (400, 300),
        "num_return_steps": 5,
        "discount": 0.99,
        "target_update_period": 100,
        "num_actors": 32,
        "noise_low": 1 / 32,
        "noise_high": 1.0,
        "replay": "prioritized",
        "priority_exponent": 0.6,
        "replay_capacity": 10**6,
        "policy_learning_rate": 1e-4,
        "critic_learning_rate": 1e-4,
    },
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_preset_of_a_paper_has_its_values(name):
    (preset,) = (of for of in WORKLOADS[name].presets if of.name == "paper")
    paper, expected = WORKLOADS[name].make_config("paper", {}), PAPERS[name]
    found = {n: getattr(paper, n, getattr(preset, n, None)) for n in expected}

    assert expected == found


# Options of workloads, whose values are JSON, and what is said of them.
REFUSED = r"""
resnet50 image_size=65 -> image_size=65 must be a multiple of 32
resnet50 image_size="64" -> image_size='64' must be an integer
resnet50 image_size=true -> image_size=True must be an integer
resnet50 momentum=1.0 -> momentum=1\.0 must be at least 0\.0 and below 1\.0
resnet50 weight_decay=NaN -> weight_decay=nan must be a finite number
resnet50 weight_decay=-1 -> weight_decay=-1\.0 must be at least 0
resnet50 version="v2" -> version='v2' must be one of 'v1', 'v1\.5'
resnet50 version=1 -> version=1 must be a string
resnet50 num_classes=0 -> num_classes=0 must be at least 1
resnet50 image_sise=64 -> 'image_sise' is unknown to resnet50: .* mean 'image_size'\?$
sngan image_size=24 -> image_size=24 must be 4 times a power of two
sngan batch_norm="global" -> batch_norm='global' must be one of 'local'
sngan num_metric_examples=50 -> num_metric_examples=50 must be at least 100
sngan num_metric_examples=2048 extractor="inception" -> =2048 must be above 2
sngan layout="imagenet" generator_channels=10 -> =10 must be a mult
sngan compute_dtype="mixed_float16" -> must be one of 'float32', 'mixed_bfl
sngan conv_layout="nhwc" jit="compute" -> ='nhwc' has no effect with
sngan jit="compute" batch_norm="cross_replica" -> need collectives .*: use
d4pg policy_sizes="300;200" -> policy_sizes='300;200' must be the units
d4pg critic_sizes="0" -> critic_sizes='0' must be the units of each layer
d4pg network="mlp" critic_sizes="400" -> must have two sizes or more
d4pg lowest_return=150.0 -> must be below highest_return=150\.0
d4pg noise_low=0.0 -> noise_low=0\.0 must be above 0 and at most noise_high
d4pg discount=1.5 -> discount=1\.5 must be at least 0\.0 and at most 1\.0$
d4pg actor_niceness=20 -> actor_niceness=20 must be .* below 20
transformer width=15 -> width=15 must be even, for pairs of sinusoids, and a
transformer width=10 num_heads=4 -> num_heads=4, which share it: use for exam
transformer sequence_length=2048 -> sequence_length=2048 must be at least 2 and
transformer pipeline_stages=7 -> =7 is more than the 6 parts .* at most 6
transformer pipeline_stages=2 schedule="zigzag" -> 'zigzag' must be one of
transformer pipeline_stages=2 jit="compute" -> many calls of its stages
transformer pipeline_stages=2 sharded_update="parameters" -> stores each
transformer recompute=true -> recompute=True has no effect without a pipeline: set
transformer schedule="fill_drain" -> 'fill_drain' has no effect without a pipeline
transformer mesh="2x2" -> mesh='2x2' must be 1xN, .* number of replicas is --repl
transformer mesh="1x3" -> mesh='1x3' divides num_heads=4 over 3 devices
transformer jit="all" -> option jit='all' must be one of 'off', 'compute'
transformer tf32="on" -> option tf32='on' must be true or false
keras_fit model="ResNet5" -> model='ResNet5' must be one of 'ConvNeXtTiny',
keras_fit model="no.py:make" -> cannot read 'no.py': No such file .* FILE.py:FUNC
keras_fit model="Xception" -> option image_size=32 must be at least 71
keras_fit jit="compute" -> compile\(\) of Keras takes a whole step or nothing
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_wrong_option_values_are_named(row):
    given, _, message = row.partition(" -> ")
    name, *words = given.split()
    options = {k: json.loads(v) for k, _, v in (word.partition("=") for word in words)}
    with pytest.raises(ValueError, match=message):
        WORKLOADS[name].make_config("smoke", options)


def test_options_override_the_preset():
    plain = WORKLOADS["resnet50"].make_config("laptop", {})
    made = WORKLOADS["resnet50"].make_config("laptop", {"weight_decay": 0})

    assert isinstance(made.weight_decay, float)
    assert made.image_size == plain.image_size
    with pytest.raises(
        ValueError, match=r"preset 'laptob' is unknown .*did you mean 'laptop'\?"
    ):
        WORKLOADS["resnet50"].make_config("laptob", {})


def test_preparing_leaves_room_for_virtual_devices(tmp_path):
    """The harness prepares before it makes the replicator; an op would be too early.

    In a process that is forked from one that has imported TensorFlow and run no op.
    """
    program = tmp_path / "prepare.py"
    program.write_text(
        "import replicator; from workloads import WORKLOADS\n"
        "for info in WORKLOADS.values():\n"
        "    info.prepare(data=info.presets[0].data)\n"
        "    print('prepared', info.name)\n"
        "print(replicator.create('tf_mirrored', num_replicas=2).num_replicas)"
    )

    code, output = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env=child_environment(case_cluster.ENV),
        log=tmp_path / "log",
        timeout_sec=300,
    )

    prepared = [f"prepared {name}" for name in WORKLOADS]
    assert 0 == code, output
    # Without what TensorFlow prints about missing GPUs.
    lines = [x for x in output.splitlines() if x.isdigit() or x.startswith("prepared ")]
    assert [*prepared, "2"] == lines, output
