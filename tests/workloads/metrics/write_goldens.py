"""Writes what published implementations make of the golden features.

Run in an environment of its own, which the tests do not need:

    pip install torch-fidelity && python write_goldens.py torch_fidelity
    pip install tensorflow tf-keras tensorflow-probability
    pip install --no-deps tensorflow-gan && python write_goldens.py tensorflow_gan

``goldens.json`` keeps the section of the other one. Versions stand in it.
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np

PATH = pathlib.Path(__file__).with_name("goldens.json")
# n of each of the two sets, features.
CASES = {
    "gaussian": (500, 16),
    "rectified": (300, 48),
    "fewer_examples_than_features": (40, 64),
}
NUM_CLASSES = 10
NUM_LOGITS = 500
NUM_SPLITS = 5


def features(case):
    num_examples, num_features = CASES[case]
    # The stream of RandomState never changes, that of newer generators may.
    random = np.random.RandomState(sorted(CASES).index(case))
    mixing = random.standard_normal((num_features, num_features))
    mixing /= np.sqrt(num_features)
    first = random.standard_normal((num_examples, num_features)) @ mixing
    second = 1.2 * random.standard_normal((num_examples, num_features)) @ mixing + 0.1
    if case == "rectified":  # as behind a ReLU, with some features always zero
        first, second = np.maximum(first, 0.0), np.maximum(second, 0.0)
        first[:, :3] = second[:, :3] = 0.0
    return first, second


def logits():
    random = np.random.RandomState(10)
    return 3.0 * random.standard_normal((NUM_LOGITS, NUM_CLASSES))


def torch_fidelity():
    import torch
    from torch_fidelity import metric_fid, metric_isc, metric_kid

    scores = {"fid": {}, "kid": {}}
    for case, (num_examples, _) in CASES.items():
        pair = [torch.from_numpy(x) for x in features(case)]
        statistics = [metric_fid.fid_features_to_statistics(x) for x in pair]
        found = metric_fid.fid_statistics_to_metric(*statistics, verbose=False)
        scores["fid"][case] = found["frechet_inception_distance"]
        # One subset of all examples is the estimate over all pairs.
        found = metric_kid.kid_features_to_metric(
            *pair, kid_subsets=1, kid_subset_size=num_examples, verbose=False
        )
        scores["kid"][case] = found["kernel_inception_distance_mean"]
    found = metric_isc.isc_features_to_metric(
        torch.from_numpy(logits()),
        splits=NUM_SPLITS,
        shuffle=False,
    )
    scores["inception_score"] = found["inception_score_mean"]
    scores["inception_score_std"] = found["inception_score_std"]
    return {"versions": versions("torch-fidelity", "torch", "numpy"), **scores}


def tensorflow_gan():
    import tensorflow as tf

    spec = importlib.util.find_spec("tensorflow_gan")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = pathlib.Path(spec.submodule_search_locations[0])
    for name in ("", ".python", ".python.eval"):
        package = types.ModuleType(f"tensorflow_gan{name}")
        package.__path__ = [str(root / name.replace(".", "/").strip("/"))]
        sys.modules[package.__name__] = package
    from tensorflow_gan.python.eval import classifier_metrics

    scores = {"fid": {}, "kid": {}}
    for case, (num_examples, _) in CASES.items():
        pair = [tf.constant(x) for x in features(case)]
        scores["fid"][case] = float(
            classifier_metrics.frechet_classifier_distance_from_activations(*pair)
        )
        scores["kid"][case] = float(
            classifier_metrics.kernel_classifier_distance_from_activations(
                *pair, max_block_size=num_examples
            )
        )
    parts = [
        float(classifier_metrics.classifier_score_from_logits(part))
        for part in tf.split(tf.constant(logits()), NUM_SPLITS)
    ]
    scores["inception_score"] = float(np.mean(parts))
    scores["inception_score_std"] = float(np.std(parts))
    return {"versions": versions("tensorflow-gan", "tensorflow", "numpy"), **scores}


def versions(*packages):
    return {name: importlib.metadata.version(name) for name in packages}


def main(source):
    makers = {"torch_fidelity": torch_fidelity, "tensorflow_gan": tensorflow_gan}
    goldens = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    goldens[source] = makers[source]()
    text = json.dumps(goldens, indent=2, sort_keys=True)
    PATH.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
