"""Writes what published implementations make of seeded inputs.

Each is run in an environment of its own, which the tests do not need:

    pip install rlax && python write_goldens.py rlax
    pip install torch-fidelity && python write_goldens.py torch_fidelity
    pip install tensorflow tf-keras tensorflow-probability
    pip install --no-deps tensorflow-gan && python write_goldens.py tensorflow_gan

rlax writes ``d4pg/goldens.json`` (the present one: rlax 0.1.9, jax 0.10), in float32.
The others write their sections of ``metrics/goldens.json``, with their versions.
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np

FOLDER = pathlib.Path(__file__).parent

# What two libraries make of features and logits, as scores of images.
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


# What rlax makes of the losses of D4PG.
NUM_EXAMPLES, NUM_ATOMS, ACTION_SIZE = 6, 11, 3
LOW, HIGH, CLIP_NORM = -3.0, 3.0, 1.0


def losses_inputs():
    """Returns seeded inputs; some returns leave the range, some episodes end."""
    rng = np.random.default_rng(20180423)
    logits = rng.normal(size=(2, NUM_EXAMPLES, NUM_ATOMS))
    return {
        "reward": rng.normal(0.0, 2.0, NUM_EXAMPLES).astype(np.float32),
        "discount": np.array([0.99, 0.9, 0.0, 0.5, 0.95, 1.0], np.float32),
        "logits": logits[0].astype(np.float32),
        "next_logits": logits[1].astype(np.float32),
        "action": rng.uniform(-1, 1, (NUM_EXAMPLES, ACTION_SIZE)).astype(np.float32),
        "value_gradient": rng.normal(size=(NUM_EXAMPLES, ACTION_SIZE)).astype(
            np.float32
        ),
    }


def rlax_losses():
    import jax
    import jax.numpy as jnp
    import rlax

    inputs = losses_inputs()
    atoms = jnp.linspace(LOW, HIGH, NUM_ATOMS)
    probabilities = jax.nn.softmax(inputs["next_logits"])
    returns = inputs["reward"][:, None] + inputs["discount"][:, None] * atoms
    project = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))
    learn = jax.vmap(rlax.categorical_td_learning, in_axes=(None, 0, 0, 0, None, 0))
    losses = learn(
        atoms,
        inputs["logits"],
        inputs["reward"],
        inputs["discount"],
        atoms,
        inputs["next_logits"],
    )

    def policy_losses(action):
        clip = jax.vmap(lambda a, g: rlax.dpg_loss(a, clip_to_norm(g), None))
        return clip(action, inputs["value_gradient"]).sum(axis=1)

    def clip_to_norm(gradient):
        # rlax cuts values, Acme norms; the cut is applied here, before rlax's loss.
        norm = jnp.linalg.norm(gradient)
        return gradient * jnp.minimum(1.0, CLIP_NORM / norm)

    goldens = {
        **inputs,
        "target": project(returns, probabilities, atoms),
        "critic_loss": losses,
        "policy_loss": policy_losses(inputs["action"]),
        "policy_gradient": jax.grad(lambda a: policy_losses(a).sum())(inputs["action"]),
    }
    return {name: np.asarray(value).tolist() for name, value in goldens.items()}


def main(source):
    if source == "rlax":
        text = json.dumps(rlax_losses(), indent=1)
        (FOLDER / "d4pg" / "goldens.json").write_text(f"{text}\n", encoding="utf-8")
        return
    path = FOLDER / "metrics" / "goldens.json"
    makers = {"torch_fidelity": torch_fidelity, "tensorflow_gan": tensorflow_gan}
    goldens = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    goldens[source] = makers[source]()
    text = json.dumps(goldens, indent=2, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
