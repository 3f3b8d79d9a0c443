"""The text of TensorFlow's Python files: which bytes, which order, which split."""

import base64
import hashlib
import importlib.metadata
import random

import numpy as np
import pytest
from small_programs import build

import replicator
from workloads.data import sources, text_files

# Of the release that the lock installs, on every machine and every Python.
VERSION = "2.21.0"
DIGEST = "6c2cde8d2a59ed17ef32e47dfa53a9dcc189abc5a6f8100d9cc7d92228cc79c8"
NUM_FILES, NUM_BYTES = 1_138, 22_156_630
NUM_TRAIN, NUM_TEST = 20_148, 931
FIRST = "2d004aff1682a668"  # of the first four pieces that are held out


@pytest.fixture(scope="module")
def source(data_dirs):
    del data_dirs
    return sources.open_text("tensorflow_source")


@pytest.fixture
def package(tmp_path, monkeypatch):
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
        monkeypatch.setattr(text_files, "_distribution", lambda: found)

    return install


@pytest.mark.skipif(
    importlib.metadata.version("tensorflow") != VERSION,
    reason=f"the digest is that of TensorFlow {VERSION}",
)
def test_every_machine_reads_the_same_bytes(source):
    tokens = source.splits["test"]["text"][:4]

    assert (NUM_TRAIN, NUM_TEST) == (
        source.num_train_examples,
        source.num_evaluation_examples,
    )
    # All pieces of a file are in one split; about one file in 20 is held out.
    sizes, files = [0, 0], text_files.read()
    for file in files:
        sizes[file.is_held_out] += len(file.chunks)
    assert [NUM_TRAIN, NUM_TEST] == sizes
    assert 0.03 < sum(file.is_held_out for file in files) / NUM_FILES < 0.07
    assert FIRST == hashlib.sha256(tokens.tobytes()).hexdigest()[:16]
    assert source.description == (
        f"{NUM_FILES} files, {NUM_BYTES} bytes of tensorflow {VERSION}, "
        f"SHA-256 {DIGEST}"
    )


def test_generated_files_are_left_out_and_the_order_is_that_of_paths(package):
    package(
        {
            "tensorflow/b.py": b"b",
            "tensorflow/a/z.py": b"z",
            "tensorflow/a/copy.py": b"b",
            "tensorflow/a/empty.py": b"",
            "tensorflow/ops/gen_ops.py": b"g",
            "tensorflow/_api/v2/api.py": b"i",
            "tensorflow/core/x_pb2.py": b"p",
            "tensorflow/python/platform/build_info.py": b"o",
            "tensorflow/lib.so": b"s",
            "other/c.py": b"c",
        }
    )
    found = text_files.read()

    assert [
        ("tensorflow/a/copy.py", b"b"),
        ("tensorflow/a/empty.py", b""),
        ("tensorflow/a/z.py", b"z"),
    ] == [(file.path, file.content) for file in found]
    assert "9.9.9" == text_files.version()


def test_the_digest_is_of_paths_and_contents():
    digests = {
        text_files.digest_of(
            [
                text_files.File(path="a", content=one),
                text_files.File(path="b", content=other),
            ]
        )
        for one, other in ((b"xy", b"z"), (b"x", b"yz"), (b"xy", b"w"))
    }
    content = bytes(range(256)) * 9

    assert 3 == len(digests)
    assert [content[:1024], content[1024:2048]] == (
        text_files.File(path="a", content=content).chunks
    )


def test_a_file_that_was_changed_is_refused(package, tmp_path):
    package({"tensorflow/a.py": b"a"})
    (tmp_path / "tensorflow/a.py").write_bytes(b"b")

    with pytest.raises(
        ValueError,
        match=r"'tensorflow/a\.py' is not the file of the wheel of tensorflow 9\.9\.9, "
        r"which everybody else reads: install it again",
    ):
        sources.open_text("tensorflow_source")


def test_other_installations_are_refused(package, tmp_path, monkeypatch):
    for version, read, message in (
        (
            "2.22.0rc1",
            text_files.version,
            r"a release of tensorflow, .*, but 2\.22\.0rc1",
        ),
        ("2.22.0", text_files.read, r"2\.22\.0 is installed without a list of its"),
    ):
        package({"tensorflow/a.py": b"a"}, version)
        (tmp_path / f"tensorflow-{version}.dist-info/RECORD").unlink()
        with pytest.raises(ValueError, match=message):
            read()
    monkeypatch.undo()
    monkeypatch.setattr(text_files, "PACKAGE", "tensorflow-none")
    with pytest.raises(
        ValueError, match=r"package 'tensorflow-none', which is not ins"
    ):
        text_files.read()


def make_batches(seed, pipeline_id=0):
    context = replicator.InputContext(
        num_input_pipelines=2, input_pipeline_id=pipeline_id, num_replicas_in_sync=2
    )
    program = build(
        "transformer",
        replicator.create("in_graph", num_replicas=2),
        data="tensorflow_source",
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


def test_batches_depend_on_the_seed_and_the_pipeline():
    first = make_batches(1)
    everything = b"\0".join(file.content for file in text_files.read())

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
