"""Writes goldens.json: what rlax computes of seeded inputs.

rlax is no dependency. To write the file again, install it elsewhere and run

    pip install --target DIR rlax
    PYTHONPATH=DIR python tests/workloads/d4pg/write_goldens.py

(rlax 0.1.9, jax 0.10 wrote the present one.) The numbers are those of float32.
"""

import json
from pathlib import Path

import numpy as np

PATH = Path(__file__).parent / "goldens.json"
NUM_EXAMPLES, NUM_ATOMS, ACTION_SIZE = 6, 11, 3
LOW, HIGH, CLIP_NORM = -3.0, 3.0, 1.0


def make_inputs():
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


def main():
    import jax
    import jax.numpy as jnp
    import rlax

    inputs = make_inputs()
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
    lists = {name: np.asarray(value).tolist() for name, value in goldens.items()}
    PATH.write_text(json.dumps(lists, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
