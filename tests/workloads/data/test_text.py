"""The text of TensorFlow's Python files: which bytes, which order, which split."""

import base64
import hashlib
import importlib.metadata
import itertools
import random

import numpy as np
import pytest
from small_programs import build

import replicator
from workloads.data import open_text

# Of the release that the lock installs, on every machine and every Python.
VERSION = "2.21.0"
DIGEST = "6c2cde8d2a59ed17ef32e47dfa53a9dcc189abc5a6f8100d9cc7d92228cc79c8"
NUM_FILES, NUM_BYTES = 1_138, 22_156_630
NUM_TRAIN, NUM_TEST = 20_148, 931
FIRST = "2d004aff1682a668"  # of the first four pieces that are held out
NAME = "tensorflow_source"


@pytest.fixture(scope="module")
def source(data_dirs):
    del data_dirs
    return open_text(NAME)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a TensorFlow of these files, in place of this one."""

    def install(contents, version="9.9.9"):
        info = tmp_path / f"tensorflow-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: tensorflow\nVersion: {version}\n")
        rows = []
        for path, content in contents.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
            rows.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(content)}")
        random.Random(1).shuffle(rows)
        (info / "RECORD").write_text("\n".join(rows) + "\n")
        found = importlib.metadata.Distribution.at(info)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
        return info

    return install


@pytest.mark.skipif(
    importlib.metadata.version("tensorflow") != VERSION,
    reason=f"the digest is that of TensorFlow {VERSION}",
)
def test_every_machine_reads_the_same_bytes(source):
    held_out, of_files = source.splits["test"], source.splits["train"]["file"]

    assert (NUM_TRAIN, NUM_TEST) == (
        source.num_train_examples,
        source.num_evaluation_examples,
    )
    # All pieces of a file are in one split; about one file in 20 is held out.
    num_held_out = len({*held_out["file"]})
    assert {*of_files}.isdisjoint(held_out["file"])
    assert 0.03 < num_held_out / (num_held_out + len({*of_files})) < 0.07
    first = hashlib.sha256(held_out["text"][:4].tobytes())
    assert FIRST == first.hexdigest()[:16]
    assert source.description == (
        f"{NUM_FILES} files, {NUM_BYTES} bytes of tensorflow {VERSION}, "
        f"SHA-256 {DIGEST}"
    )


def content(name, size=1030, *, is_held_out=False):
    """Text of this many bytes; one file in 20 is held out, by its content."""

    def goes_there(text):
        number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        return is_held_out == (number % 20 == 0)

    texts = (f"{name}{k} ".encode() * size for k in itertools.count())
    return next(filter(goes_there, (text[:size] for text in texts)))


def test_generated_files_are_left_out_and_the_order_is_that_of_paths(install):
    b, z = content("b", is_held_out=True), content("z", 2300)
    install(
        {
            "tensorflow/b.py": b,
            "tensorflow/a/z.py": z,
            "tensorflow/a/copy.py": b,
            "tensorflow/a/empty.py": b"",
            "tensorflow/ops/gen_ops.py": content("g"),
            "tensorflow/_api/v2/api.py": content("i"),
            "tensorflow/core/x_pb2.py": content("p"),
            "tensorflow/python/platform/build_info.py": content("o"),
            "tensorflow/lib.so": content("s"),
            "other/c.py": content("c"),
        }
    )
    found = open_text(NAME)
    pieces = {
        split: {(file, bytes(text)) for text, file in zip(*arrays, strict=True)}
        for split, of in found.splits.items()
        for arrays in [(of["text"], of["file"])]
    }

    # Files a/copy.py, a/empty.py and a/z.py; what remains at an end is left out.
    assert {
        "test": {(0, b[:1024])},
        "train": {(2, z[:1024]), (2, z[1024:2048])},
    } == pieces
    assert f"3 files, {len(b + z)} bytes of tensorflow 9.9.9, SHA-256" in (
        found.description
    )


def test_the_digest_is_of_paths_and_contents(install):
    enough = {
        f"tensorflow/{name}.py": content(name, is_held_out=name == "d")
        for name in ("c", "d")
    }
    digests = set()
    for patch, (one, other) in enumerate(((b"xy", b"z"), (b"x", b"yz"), (b"xy", b"w"))):
        files = {"tensorflow/a.py": one, "tensorflow/b.py": other, **enough}
        install(files, f"9.9.{patch}")
        digests.add(open_text(NAME).description.rpartition(" ")[2])

    assert 3 == len(digests)
    assert {64} == set(map(len, digests))


CHANGED = (
    r"'tensorflow/a\.py' is not the file of the wheel of tensorflow 9\.9\.9, "
    r"which everybody else reads: install it again"
)
# What is done to an installation, and what is said of it.
REFUSED = [
    (
        "9.9.9",
        lambda info: (info.parent / "tensorflow/a.py").write_bytes(b"b"),
        CHANGED,
    ),
    ("2.22.0rc1", lambda _: None, r"a release of tensorflow, .*, but 2\.22\.0rc1"),
    (
        "2.22.0",
        lambda info: (info / "RECORD").unlink(),
        r"2\.22\.0 is installed without a list of its",
    ),
]


@pytest.mark.parametrize(("version", "change", "message"), REFUSED)
def test_other_installations_are_refused(install, version, change, message):
    change(install({"tensorflow/a.py": b"a"}, version))
    with pytest.raises(ValueError, match=message):
        open_text(NAME)


def test_without_tensorflow_there_is_no_text(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ValueError, match=r"package 'tensorflow', which is not ins"):
        open_text(NAME)


def make_batches(seed, pipeline_id=0):
    context = replicator.InputContext(
        num_input_pipelines=2, input_pipeline_id=pipeline_id, num_replicas_in_sync=2
    )
    program = build(
        "transformer",
        replicator.create("in_graph", num_replicas=2),
        data=NAME,
        per_replica_batch_size=4 * 32,
        sequence_length=32,
        shuffle_buffer_size=64,
        seed=seed,
    )
    dataset = program.training.input_fn(context)
    return [
        (batch["token"].tobytes(), batch["example_id"].tolist())
        for batch in dataset.take(2).as_numpy_iterator()
    ]


def test_batches_depend_on_the_seed_and_the_pipeline(source):
    first = make_batches(1)
    everything = b"\0".join(map(bytes, source.splits["train"]["text"]))

    assert first == make_batches(1)
    assert first != make_batches(2)
    others = make_batches(1, pipeline_id=1)
    assert not {i for _, ids in first for i in ids} & {
        i for _, ids in others for i in ids
    }
    places = []
    for token, _ in first:
        for row in np.frombuffer(token, np.uint8).reshape(4, 32):
            assert row.tobytes() in everything
            places.append(row.tobytes())
    assert 8 == len(set(places))
