"""Orbit: a controller drives a trainer, with Orbit's own options."""

import keras
import orbit
import tensorflow as tf

from communities.data import GLOBAL_BATCH, regression, weights_of


class Trainer(orbit.StandardTrainer):
    """Steps run in a loop within one ``tf.function``."""

    def __init__(self, strategy):
        self.strategy = strategy
        data = tf.data.Dataset.from_tensor_slices(regression()).repeat()
        data = data.batch(GLOBAL_BATCH, drop_remainder=True)
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.01)
            self.loss = keras.metrics.Mean()
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        super().__init__(strategy.experimental_distribute_dataset(data))

    def train_loop_begin(self):
        self.loss.reset_state()

    def train_step(self, iterator):
        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum((self.model(x) - y) ** 2, axis=1)
                loss = tf.nn.compute_average_loss(
                    errors, global_batch_size=GLOBAL_BATCH
                )
            weights = self.model.trainable_variables
            grads = tape.gradient(loss, weights)
            self.optimizer.apply_gradients(zip(grads, weights, strict=True))
            self.loss.update_state(errors)

        self.strategy.run(step, args=(next(iterator),))
        self.global_step.assign_add(1)

    def train_loop_end(self):
        return {"loss": self.loss.result()}


def train(strategy):
    trainer = Trainer(strategy)
    controller = orbit.Controller(
        strategy=strategy,
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=3,
    )
    logs = controller.train(steps=6, checkpoint_at_completion=False)
    loss = float(logs["loss"]) if logs else float(trainer.loss.result())
    return [loss, int(trainer.global_step), *weights_of(trainer.model)]
