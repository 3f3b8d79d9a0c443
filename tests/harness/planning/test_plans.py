"""A plan has distinct, interleaved, paired trials, or says why there is none."""

import contextlib
import io
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from fake_machine import FakeNvml, make_gpus, with_cpus
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import ExitCode, main
from workloads import WORKLOADS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setattr("workloads.d4pg.capacity.check", lambda *_, **__: None)
        # Counting the variables of a model imports TensorFlow.
        kind = type(WORKLOADS["transformer"])
        patch.setattr(kind, "memory_table", lambda *_, **__: [""])
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.delenv("TFDS_DATA_DIR", raising=False)
        yield made
        assert [] == list(made.iterdir())


def _run(options, num_cores, num_gpus, preset="smoke"):
    words = ["sweep", "--dry-run", *options.split()]
    if "--workload" not in options:
        words += ["--workload=resnet50"]
    if preset and "--preset" not in options:
        words += [f"--preset={preset}"]
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(num_gpus)))
        code = main(words, run_overrides=with_cpus(range(num_cores)))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def plan(folder):
    del folder

    def run(options, num_cores=8, num_gpus=2, **preset):
        code, out, err = _run(f"{options} --json", num_cores, num_gpus, **preset)
        assert (ExitCode.OK, "") == (code, err)
        return json.loads(out)

    return run


@pytest.fixture(scope="module")
def notes(folder):
    del folder

    def run(options, num_cores=8, num_gpus=2):
        code, _, err = _run(options, num_cores, num_gpus)
        assert ExitCode.OK == code, err
        return err.splitlines()

    return run


def timed(planned):
    """Returns the specs of the first repetition, without controls and trainings."""
    return [
        spec
        for spec in (trial["spec"] for trial in planned["trials"])
        if spec["repetition_index"] == 0
        and spec["control"] == "none"
        and spec["budget"] is None
    ]


def trainings(planned):
    specs = (trial["spec"] for trial in planned["trials"])
    return [spec for spec in specs if spec["budget"] is not None]


def sizes(specs):
    return [
        (spec["backend"], spec["num_replicas"], spec["global_batch_size"])
        for spec in specs
    ]


requests = st.fixed_dictionaries(
    {
        "backends": st.lists(
            st.sampled_from(["in_graph", "tf_mirrored"]), min_size=1, unique=True
        ),
        "replicas": st.sets(st.sampled_from([1, 2, 4, 8, 16]), min_size=1).map(sorted),
        "mode": st.sampled_from([["weak", "strong"], ["weak"], ["strong"]]),
        "repeats": st.integers(1, 5),
        "per-replica-batch-size": st.sampled_from([16, 32]),
        "seed": st.integers(0, 2**40),
    }
)


def words(fields):
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    seed = f"--set=seed={texts.pop('seed')}"
    return " ".join([*(f"--{name}={text}" for name, text in texts.items()), seed])


@settings(max_examples=20, deadline=None)
@given(requests, st.integers(0, 3))
def test_a_plan_is_complete_balanced_and_paired(plan, fields, other_seed):
    request = f"--order=sequential --budget=none {words(fields)}"
    planned = plan(request)
    trials = planned["trials"]
    cases = sorted({trial["case_id"] for trial in trials})
    blocks = [
        [trial["case_id"] for trial in block]
        for _, block in itertools.groupby(
            trials, key=lambda trial: trial["spec"]["repetition_index"]
        )
    ]
    ids = {trial["trial_id"] for trial in trials}
    pairs = {
        (trial["spec"]["repetition_index"], trial["spec"]["seed"]) for trial in trials
    }

    assert len(trials) == len(ids) == len(cases) * fields["repeats"]
    # ABBA: a drift affects every case equally over a pair of blocks.
    assert [cases] * fields["repeats"] == [sorted(block) for block in blocks]
    assert all(even == odd[::-1] for even, odd in itertools.pairwise(blocks))
    # One seed pairs the cases of a repetition, and no others.
    assert fields["repeats"] == len(pairs) == len({seed for _, seed in pairs})
    # A ratio of two cases compares equal replicas.
    assert 1 == len({trial["spec"]["cores_per_replica"] for trial in trials})
    batch = fields["per-replica-batch-size"]
    for trial in trials:
        spec = trial["spec"]
        whole = spec["per_replica_batch_size"] * spec["num_replicas"]
        assert whole == spec["global_batch_size"]
        assert "weak" not in trial["modes"] or batch == spec["per_replica_batch_size"]
        assert "strong" not in trial["modes"] or batch * fields["replicas"][0] == whole
    # Every backend and size is compared with one replica, once: a replica has two
    # examples or more, and a global batch sixteen.
    compared = sizes(trial["spec"] for trial in planned["equivalence"]["trials"])
    several = [n for n in fields["replicas"] if n > 1]
    assert sorted(itertools.product(fields["backends"], several)) == sorted(
        (backend, number) for backend, number, _ in compared if backend != "single"
    )
    for _, number, size in compared:
        assert (size % number, size >= max(16, 2 * number)) == (0, True)
        assert ("single", 1, size) in compared
    again = plan(request)
    assert (trials, planned["study"]) == (again["trials"], again["study"])
    if other_seed != fields["seed"]:
        other = plan(f"--order=sequential {words(fields | {'seed': other_seed})}")
        assert ids.isdisjoint(trial["trial_id"] for trial in other["trials"])
        assert planned["study"] != other["study"]


@pytest.mark.parametrize(
    ("options", "num_cores", "expected"),
    [
        # With --global-batch-size, the modes need not meet at one replica.
        ("--replicas=1 --global-batch-size=12", 8, {(1, 4), (1, 12)}),
        # Powers of two up to the cores, 8, and what divides 4 examples.
        ("--backends=in_graph", 1, {(1, 4)}),
        ("--backends=in_graph", 2, {(1, 4), (2, 4), (2, 8)}),
        ("--mode=strong", 64, {(1, 4), (2, 4), (4, 4)}),
        ("--mode=weak", 64, {(1, 4), (2, 8), (4, 16), (8, 32)}),
        ("--device=gpu --preset=gpu --mode=weak", 4, {(1, 256), (2, 512)}),
        # Two sequences of 64 tokens are for two replicas.
        (
            "--workload=transformer --mode=strong --global-batch-size=128",
            *(4, {(1, 128), (2, 128)}),
        ),
    ],
)  # fmt: skip
def test_replicas_and_batches_fit_the_machine_and_the_modes(
    plan, options, num_cores, expected
):
    found = timed(plan(f"--repeats=1 {options}", num_cores))

    assert expected == {(number, batch) for _, number, batch in sizes(found)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4,1,2", [1, 2, 4]),
        ("1..4", [1, 2, 3, 4]),
        ("1-4", [1, 2, 3, 4]),
        ("1-16x2", [1, 2, 4, 8, 16]),
        ("3..20x3", [3, 9]),
        ("1..2,8,2", [1, 2, 8]),
    ],
)
def test_numbers_of_replicas_are_lists_and_ranges(plan, text, expected):
    planned = plan(f"--backends=in_graph --mode=weak --replicas={text}", num_cores=20)

    assert expected == [number for _, number, _ in sizes(timed(planned))]


def test_a_duration_is_a_number_with_a_unit(plan):
    texts = ("90s", "12min", "2h", "1.5h")
    found = [plan(f"--timeout={text} --budget=none")["timeout_sec"] for text in texts]

    assert [90, 720, 7200, 5400] == found


def test_a_backend_of_one_replica_is_planned_there_and_it_is_said(plan, notes):
    options = "--backends=single,in_graph --replicas=1,2 --mode=weak"

    assert [("single", 1, 4), ("in_graph", 1, 4), ("in_graph", 2, 8)] == sizes(
        timed(plan(options))
    )
    assert any(
        "backend single: planned at 1 replica(s) only" in line
        for line in notes(options)
    )


GPU = "--device=gpu --preset=gpu --replicas=1"
DETECTED = {"external_writes": "detect"}


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        # On CPUs a step has ended when its call returns, so nothing is gained.
        ("", "steps_per_sync", 1),

        (GPU, "steps_per_sync", 10),
        # The host uses the results of each step.
        (f"{GPU} --workload=d4pg --budget=none", "steps_per_sync", 1),

        (f"{GPU} --option=external_writes=detect", "options", DETECTED),

        # Synthetic data has no held-out split.
        ("--order=sequential", "is_evaluated", True),
        ("--order=sequential --data=synthetic", "is_evaluated", False),
        ("--data=synthetic --budget=window", "is_evaluated", True),

        ("--order=sequential --budget=none", "is_evaluated", False),
    ],
)  # fmt: skip
def test_every_trial_has_what_the_preset_or_an_option_says(
    plan, options, name, expected
):
    planned = plan(options, num_gpus=1)

    assert {json.dumps(expected)} == {
        json.dumps(trial["spec"][name]) for trial in planned["trials"]
    }


def budget(amount, unit="seconds"):
    return {"amount": amount, "unit": unit, "num_evaluations": 2}


@pytest.mark.parametrize(
    ("text", "expected", "is_evaluated"),
    [
        ("60s", budget(60.0), False),
        ("500steps", budget(500.0, "steps"), False),
        ("20000examples", budget(20_000.0, "examples"), False),
        ("window,60s", budget(60.0), True),
        ("window", None, True),
    ],
)
def test_a_budget_says_what_measures_quality(plan, text, expected, is_evaluated):
    options = f"--timeout=20000s --set=quality-repeats=2 --budget={text}"
    planned = plan(options, num_cores=2)
    found = trainings(planned)

    assert [expected] * (8 if expected else 0) == [spec["budget"] for spec in found]
    assert {is_evaluated} == {spec["is_evaluated"] for spec in timed(planned)}
    seeds = {(spec["repetition_index"], spec["seed"]) for spec in found}
    assert (2 if expected else 0) == len(seeds)


def test_the_default_sweep_ends_with_trainings_of_its_first_backend(plan, notes):
    default = plan("--preset=laptop", num_cores=2)
    weak = plan("--preset=laptop --mode=weak", num_cores=2)
    synthetic = plan("--preset=laptop --data=synthetic", num_cores=2)

    found = [("in_graph", 1, 8), ("in_graph", 2, 8)]
    assert found == sizes(trainings(default))
    assert trainings(default) == [trial["spec"] for trial in default["trials"][-2:]]
    text = "quality runs: in_graph x1, in_graph x2 for 40 seconds each, strong"
    assert any(text in line for line in notes("--preset=laptop", num_cores=2))
    assert [8, 16] == [spec["global_batch_size"] for spec in trainings(weak)]
    assert [] == trainings(synthetic)


def controls(planned):
    return [
        (s["control"], s["backend"], s["num_replicas"], s["per_replica_batch_size"])
        for s in (trial["spec"] for trial in planned["trials"])
        if s["repetition_index"] == 0 and s["control"] not in ("none", "twin")
    ]


THREE = "--controls=synthetic,nosync,independent"
CONTROLLED = [
    # One replica with the same batch is needed for the input and the update.
    (
        *("--controls=all --replicas=1,2,4,8 --per-replica-batch-size=8", 4),
        [
            ("nosync", "in_graph", 4, 8),
            ("solo", "single", 4, 8),
            ("synthetic", "in_graph", 4, 8),
            ("synthetic", "in_graph", 1, 8),
            ("input_only", "in_graph", 4, 8),
            ("no_update", "in_graph", 4, 8),
            ("no_update", "in_graph", 1, 8),
        ],
        "controls nosync, independent, synthetic, input_only, no_update: of in_graph",
    ),
    # The first backend with several replicas; one replica has nothing to explain.
    (
        *(f"{THREE} --backends=single,tf_mirrored --replicas=1,2", 2),
        [
            ("nosync", "tf_mirrored", 2, 4),
            ("solo", "single", 2, 4),
            ("synthetic", "tf_mirrored", 2, 4),
            ("synthetic", "tf_mirrored", 1, 4),
        ],
        "controls nosync, independent, synthetic: of tf_mirrored x2, weak scaling",
    ),
    (
        *(f"{THREE} --backends=async --replicas=1,2", 2),
        [
            ("solo", "single", 2, 4),
            ("synthetic", "async", 2, 4),
            ("synthetic", "async", 1, 4),
        ],
        "no control nosync of backend async: ",
    ),
    ("--controls=none --replicas=1,2", 2, [], "primary contrast: "),
]


@pytest.mark.parametrize(("options", "num_cores", "expected", "note"), CONTROLLED)
def test_controls_are_those_of_the_case_that_they_explain(
    plan, notes, options, num_cores, expected, note
):
    assert expected == controls(plan(options, num_cores))
    assert [line for line in notes(options, num_cores) if note in line]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("replicas", "num_cores", "expected"),
    [
        ("1,2", 1, "each on a core of its own, and there is 1 core; use"),
        ("1,4", 2, "on at most 2 cores, against 1 replica of the same backend"),
        ("2,4", 4, "on at most 4 cores, against 1 replica of the same backend"),
    ],
)
def test_controls_without_a_case_are_refused(replicas, num_cores, expected):
    code, _, err = _run(f"--replicas={replicas} {THREE}", num_cores, 0)

    assert ExitCode.USAGE == code
    assert "explain a case of 2 replicas or more, " + expected in err


STAGES = (
    "--option=pipeline_stages=2 --option=num_microbatches=8 --option=recompute=true"
)
TOKENS = "--workload=transformer --replicas=1,2"


@pytest.mark.parametrize(
    ("options", "specs", "not_checked"),
    [
        (
            "--backends=in_graph --replicas=7,8,9 --mode=weak",
            [
                *[("single", 1, 21), ("single", 1, 16), ("single", 1, 18)],
                *[("in_graph", 7, 21), ("in_graph", 8, 16), ("in_graph", 9, 18)],
            ],
            {},
        ),
        (
            "--replicas=1,2 --backends=async",
            *([], {"async": "every worker updates from the values that it has read"}),
        ),
        (
            "--replicas=1,2 --backends=in_graph --no-match",
            *([], {"in_graph": "--no-match was given"}),
        ),
        # Whole sequences.
        (
            f"{TOKENS} --backends=in_graph",
            [("single", 1, 1024), ("in_graph", 2, 1024)],
            {},
        ),
        # Stages also at one replica: two sequences of each micro-batch for each.
        (
            f"{TOKENS} --mode=weak --backends=in_graph,single {STAGES}",
            [
                *[("single", 1, 2048), ("in_graph", 1, 2048), ("in_graph", 2, 2048)],
                ("single", 1, 2048),
            ],
            {},
        ),
    ],
)
def test_every_backend_and_size_is_compared_with_one_replica_once(
    plan, notes, options, specs, not_checked
):
    found = plan(options)["equivalence"]
    trials = [trial["spec"] for trial in found["trials"]]

    assert sorted(specs) == sorted(sizes(trials))
    assert not_checked == found["not_checked"]
    assert {(("match", "sequential", False), 3)} >= {
        (
            (spec["control"], spec["order"], spec["is_evaluated"]),
            spec["num_warmup_steps"] + spec["num_measured_steps"],
        )
        for spec in trials
    }
    said = [line for line in notes(options) if "is not checked" in line]
    assert [
        f"backend {name} is not checked against one replica: {reason}"
        for name, reason in not_checked.items()
    ] == said


def test_stages_are_compared_with_one_device_and_have_cores_of_their_own(plan):
    """Four cores are two replicas of two stages, and so the default goes to two."""
    options = f"--workload=transformer --backends=in_graph {STAGES}"
    planned = plan(f"{options} --per-replica-batch-size=1024", num_cores=4)
    reference, *others = (t["spec"] for t in planned["equivalence"]["trials"])

    assert {1, 2} == {spec["num_replicas"] for spec in timed(planned)}
    assert {2} == {spec["cores_per_replica"] for spec in timed(planned)}
    assert ("single", {}) == (reference["backend"], reference["options"])
    assert {2} == {spec["options"]["pipeline_stages"] for spec in others}
    assert ("without dropout; the one replica is on one device") == planned[
        "equivalence"
    ]["remarks"]["in_graph"]


def test_a_mesh_is_of_the_backend_that_splits_dimensions(plan, refuse):
    options = "--workload=transformer --preset=smoke --option=mesh=1x2"
    planned = plan(f"{options} --backends=in_graph,dtensor --replicas=1,2", num_cores=4)

    assert {2} == {spec["cores_per_replica"] for spec in timed(planned)}
    assert {
        "dtensor": "without dropout; the one replica is on one device",
        "in_graph": "without dropout",
    } == planned["equivalence"]["remarks"]
    refused = refuse("sweep", *f"{options} --backends=in_graph".split())
    assert "option mesh=1x2 has no effect: only the backend dtensor" in refused


# In seconds, of ResNet-50 with 224 px. Images per second and GPU: A100, mixed precision
# (DeepLearningExamples). A context of CUDA: 1 to 2 s each, in turn. Imports, tracing
# and checks: of trials on two cores here. Choosing kernels: cuDNN tries those of
# 53 convolutions in three directions, each for some milliseconds, on all GPUs at once.
IMPORTS, CONTEXT, TRACE, CHOICE, CHECKS, END = 9.0, 1.5, 15.0, 12.0, 4.0, 3.0
REPLICA_TRACE = 3.0
IMAGES_PER_SEC = 2375.0


def seconds(spec):
    num_gpus = spec["num_replicas"]
    num_steps = spec["num_warmup_steps"] + spec["num_measured_steps"]
    steps = num_steps * spec["per_replica_batch_size"] / IMAGES_PER_SEC
    start = IMPORTS + CONTEXT * num_gpus + TRACE + REPLICA_TRACE * num_gpus + CHOICE
    return start + steps + CHECKS + END


@pytest.mark.parametrize(
    ("num_gpus", "question"),
    [
        (1, "single / in_graph, weak scaling, x1"),
        (8, "in_graph, weak scaling, x8 / x1"),
    ],
)
def test_on_gpus_the_question_is_scaling_and_the_time_is_right(
    plan, num_gpus, question
):
    """To a factor of 1.3 of what others have published, equivalence checks included.

    An estimate that forgets trials, or what grows with GPUs, is far from it.
    """
    makefile = Path(__file__).resolve().parents[3] / "Makefile"
    (flags,) = re.findall(
        r"^SWEEP_GPU_FLAGS \?= (.+)$",
        makefile.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    found = plan(f"--device=gpu {flags}", num_gpus=num_gpus, preset="")
    trials = [*found["trials"], *found["equivalence"]["trials"]]
    expected = sum(seconds(trial["spec"]) for trial in trials)

    assert question == found["measuring"]["primary"]["text"]
    assert len(found["trials"]) == found["num_missing"]
    assert expected / 1.3 <= found["estimated_sec"] <= expected * 1.3
    assert re.fullmatch(
        r"assuming 42 s per trial, 5 s per GPU of it and 0.1 s per step: no .*",
        found["estimate_basis"],
    )
    if num_gpus == 8:
        assert (27, 7) == (len(found["trials"]), len(found["equivalence"]["trials"]))
        assert 33 < found["estimated_sec"] / 60 < 45
        assert found["estimated_sec"] > 34 * 30
