"""Programs that end in ``fit`` of a model with a step, or a loss, of its own."""

import keras
import tensorflow as tf
from keras import layers, ops
from published.fitted import (
    BATCH,
    LENGTH,
    WORDS,
    batches,
    images,
    labels,
    noise_of,
    results,
    tokens,
)

LATENT = 4


class Trained(keras.Model):
    """A model that is trained in parts, none of which is called as the whole."""

    def call(self, x):
        """Keras asks for one in order to build a model, under any strategy."""
        return x


def _discriminator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


class WGAN(Trained):
    def __init__(self, d_steps=3, gp_weight=10.0):
        super().__init__()
        self.d_steps, self.gp_weight = d_steps, gp_weight
        self.discriminator = _discriminator()
        self.generator = keras.Sequential(
            [
                keras.Input((LATENT,)),
                layers.Dense(4 * 4 * 2, use_bias=False),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 2)),
                layers.UpSampling2D(2),
                layers.Conv2D(1, 3, padding="same", activation="tanh"),
            ]
        )

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def gradient_penalty(self, real_images, fake_images):
        """How far norms of gradients are from 1, between both images."""
        alpha = noise_of(real_images, 1)[:, :, None, None]
        between = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as tape:
            tape.watch(between)
            predicted = self.discriminator(between, training=True)
        slopes = tape.gradient(predicted, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real_images):
        for _ in range(self.d_steps):
            noise = noise_of(real_images, LATENT)
            with tf.GradientTape() as tape:
                fake_images = self.generator(noise, training=True)
                on_fake = self.discriminator(fake_images, training=True)
                on_real = self.discriminator(real_images, training=True)
                d_loss = tf.reduce_mean(on_fake) - tf.reduce_mean(on_real)
                penalty = self.gradient_penalty(real_images, fake_images)
                d_loss += self.gp_weight * penalty
            weights = self.discriminator.trainable_variables
            grads = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(grads, weights))
        with tf.GradientTape() as tape:
            made = self.generator(noise_of(real_images, LATENT), training=True)
            g_loss = -tf.reduce_mean(self.discriminator(made, training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        return {"d_loss": d_loss, "g_loss": g_loss}


def wasserstein_gan(strategy):
    """A gradient within a gradient."""
    with strategy.scope():
        model = WGAN()
        model.compile(
            d_optimizer=keras.optimizers.Adam(0.0002, beta_1=0.5, beta_2=0.9),
            g_optimizer=keras.optimizers.Adam(0.0002, beta_1=0.5, beta_2=0.9),
        )
    history = model.fit(images(), batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class CycleGAN(Trained):
    def __init__(self, lambda_cycle=10.0, lambda_identity=0.5):
        super().__init__()
        self.of_cycle = lambda_cycle
        self.of_identity = lambda_cycle * lambda_identity
        self.gen_g, self.gen_f = (_translator() for _ in "12")
        self.disc_x, self.disc_y = (_discriminator() for _ in "12")
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.identity_loss_fn = keras.losses.MeanAbsoluteError()
        self.adversarial_loss_fn = keras.losses.MeanSquaredError()

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def generator_loss(self, fake):
        return self.adversarial_loss_fn(tf.ones_like(fake), fake)

    def discriminator_loss(self, real, fake):
        on_real = self.adversarial_loss_fn(tf.ones_like(real), real)
        return 0.5 * (on_real + self.adversarial_loss_fn(tf.zeros_like(fake), fake))

    def train_step(self, batch_data):
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y = self.gen_g(real_x, training=True)
            fake_x = self.gen_f(real_y, training=True)
            cycled_x = self.gen_f(fake_y, training=True)
            cycled_y = self.gen_g(fake_x, training=True)
            same_x = self.gen_f(real_x, training=True)
            same_y = self.gen_g(real_y, training=True)
            on_fake_x = self.disc_x(fake_x, training=True)
            on_fake_y = self.disc_y(fake_y, training=True)
            total_g = self.generator_loss(on_fake_y)
            total_g += self.cycle_loss_fn(real_y, cycled_y) * self.of_cycle
            total_g += self.identity_loss_fn(real_y, same_y) * self.of_identity
            total_f = self.generator_loss(on_fake_x)
            total_f += self.cycle_loss_fn(real_x, cycled_x) * self.of_cycle
            total_f += self.identity_loss_fn(real_x, same_x) * self.of_identity
            on_real_x = self.disc_x(real_x, training=True)
            on_real_y = self.disc_y(real_y, training=True)
            loss_x = self.discriminator_loss(on_real_x, on_fake_x)
            loss_y = self.discriminator_loss(on_real_y, on_fake_y)
        networks = self.gen_g, self.gen_f, self.disc_x, self.disc_y
        losses = total_g, total_f, loss_x, loss_y
        for optimizer, network, loss in zip(self.optimizers, networks, losses):
            weights = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {
            "G_loss": total_g,
            "F_loss": total_f,
            "D_X_loss": loss_x,
            "D_Y_loss": loss_y,
        }


def _translator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )


def cycle_gan(strategy):
    """Pairs of images; logs are losses, not metrics."""
    with strategy.scope():
        model = CycleGAN()
        model.compile([keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(4)])
    history = model.fit(batches(images(), images(seed=2)), epochs=2, verbose=0)
    return results(model, history)


class VAE(keras.Model):
    """A loss of two means, each over sums of an image."""

    def __init__(self, latent_dim=2):
        super().__init__()
        hidden = layers.Dense(5, activation="relu")
        self.encoder = keras.Sequential([layers.Flatten(), hidden])
        self.z_mean, self.z_log_var = (layers.Dense(latent_dim) for _ in "12")
        self.decoder = keras.Sequential(
            [layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))]
        )
        names = "total_loss", "reconstruction_loss", "kl_loss"
        self.trackers = [keras.metrics.Mean(name=name) for name in names]

    @property
    def metrics(self):
        return self.trackers

    def call(self, data):
        hidden = self.encoder(data)
        mean, log_var = self.z_mean(hidden), self.z_log_var(hidden)
        code = mean + ops.exp(0.5 * log_var) * noise_of(data, 2)
        return self.decoder(code), mean, log_var

    def train_step(self, data):
        with tf.GradientTape() as tape:
            made, mean, log_var = self(data)
            errors = keras.losses.binary_crossentropy(data, made)
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = reconstruction + kl
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        for tracker, loss in zip(self.trackers, (total, reconstruction, kl)):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def variational_autoencoder(strategy):
    """A step that never asks Keras for a loss."""
    with strategy.scope():
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam())
    history = model.fit(images(), epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


class VectorQuantizer(layers.Layer):
    """The nearest row of a codebook, and gradients straight through."""

    def __init__(self, count=6, width=3, beta=0.25):
        super().__init__()
        self.beta = beta
        self.codebook = self.add_weight(shape=(width, count), initializer="uniform")

    def call(self, x):
        """Adds the loss of the codebook and that of commitment."""
        flat = tf.reshape(x, [-1, x.shape[-1]])
        distances = (
            tf.reduce_sum(flat**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.codebook**2, axis=0)
            - 2 * tf.matmul(flat, self.codebook)
        )
        chosen = tf.one_hot(tf.argmin(distances, axis=1), self.codebook.shape[1])
        rows = tf.matmul(chosen, self.codebook, transpose_b=True)
        rows = tf.reshape(rows, tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(rows) - x) ** 2)
        codes = tf.reduce_mean((rows - tf.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment + codes)
        return x + tf.stop_gradient(rows - x)


class VQVAETrainer(Trained):
    """A model within a model, whose losses the step adds up."""

    def __init__(self, train_variance=0.08):
        super().__init__()
        self.train_variance = train_variance
        inputs = keras.Input((8, 8, 1))
        code = layers.Conv2D(3, 3, strides=2, padding="same")(inputs)
        code = VectorQuantizer()(code)
        outputs = layers.Conv2DTranspose(1, 3, strides=2, padding="same")(code)
        self.vqvae = keras.Model(inputs, outputs)
        names = "loss", "reconstruction_loss", "vqvae_loss"
        self.trackers = [keras.metrics.Mean(name=name) for name in names]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, x):
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((x - self.vqvae(x)) ** 2) / self.train_variance
            total = error + sum(self.vqvae.losses)
        weights = self.vqvae.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights))
        for tracker, loss in zip(self.trackers, (total, error, sum(self.vqvae.losses))):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def vector_quantized_autoencoder(strategy):
    """Its codebook is trained by gradients."""
    with strategy.scope():
        model = VQVAETrainer()
        model.compile(optimizer=keras.optimizers.Adam())
    history = model.fit(images() - 0.5, epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher, self.student = teacher, student

    def compile(
        self,
        optimizer,
        metrics,
        student_loss_fn,
        distillation_loss_fn,
        alpha=0.1,
        temperature=3,
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Keras' own step asks for it."""
        del sample_weight, training
        teacher_pred = self.teacher(x, training=False)
        distillation = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        student = self.student_loss_fn(y, y_pred)
        return self.alpha * student + (1 - self.alpha) * distillation

    def call(self, x):
        return self.student(x)


def _classifier(width):
    return keras.Sequential(
        [layers.Flatten(), layers.Dense(width, activation="relu"), layers.Dense(3)]
    )


def knowledge_distillation(strategy):
    """The teacher is trained before, by ``fit`` too."""
    x, y = images(), labels()
    with strategy.scope():
        teacher, student = _classifier(6), _classifier(3)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        teacher.compile("adam", loss)
        model = Distiller(student=student, teacher=teacher)
        model.compile(
            optimizer=keras.optimizers.Adam(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=loss,
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
    first = teacher.fit(x, y, batch_size=BATCH, verbose=0)
    second = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, first, second, model.evaluate(x, y, verbose=0))


class MaskedLanguageModel(keras.Model):
    """A loss for each word, weighed by which words were hidden."""

    def prepare(self):
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        """The sum: its gradient is that of losses that nothing has reduced."""
        loss = self.loss_fn(y, y_pred, sample_weight)
        self.loss_tracker.update_state(loss, sample_weight=sample_weight)
        return ops.sum(loss)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def masked_language_model(strategy):
    """In the manner of BERT."""
    words = tokens()
    hidden = (words % 3 == 0).astype("float32")
    data = batches((words * (1 - hidden)).astype("int32"), words, hidden)
    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        places = layers.Embedding(LENGTH, 4)(tf.range(LENGTH))
        embedded = layers.Embedding(WORDS, 4)(inputs) + places
        attended = layers.MultiHeadAttention(2, 2)(embedded, embedded, embedded)
        attended = layers.LayerNormalization(epsilon=1e-6)(embedded + attended)
        outputs = layers.Dense(WORDS, activation="softmax")(attended)
        model = MaskedLanguageModel(inputs, outputs)
        model.prepare()
        model.compile(optimizer=keras.optimizers.Adam(0.001))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


class NNCLR(Trained):
    """Neighbours come from a queue of what was seen before."""

    def __init__(self, temperature=0.1, queue_size=16):
        super().__init__()
        self.temperature = temperature
        self.encoder = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(5, "relu")]
        )
        self.projection_head, self.linear_probe = (
            keras.Sequential([keras.Input((5,)), layers.Dense(3)]) for _ in "12"
        )
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy()
        rows = tf.random.stateless_normal([queue_size, 3], seed=[1, 2])
        self.feature_queue = keras.Variable(
            tf.math.l2_normalize(rows, axis=1), trainable=False
        )

    def compile(self, contrastive_optimizer, probe_optimizer):
        super().compile()
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer

    def nearest_neighbour(self, projections):
        similarities = ops.matmul(projections, ops.transpose(self.feature_queue))
        nearest = ops.argmax(similarities, axis=1)
        rows = ops.take(self.feature_queue, nearest, axis=0)
        return projections + ops.stop_gradient(rows - projections)

    def contrastive_loss(self, first, second):
        """Every example is to be told from all others of the batch."""
        first, second = (tf.math.l2_normalize(each, axis=1) for each in (first, second))
        of_first, of_second = map(self.nearest_neighbour, (first, second))
        pairs = (of_first, second), (second, of_first), (of_second, first)
        logits = [
            ops.matmul(one, ops.transpose(other)) / self.temperature
            for one, other in (*pairs, (first, of_second))
        ]
        count = ops.shape(first)[0]
        loss = keras.losses.sparse_categorical_crossentropy(
            ops.concatenate([ops.arange(count)] * 4, axis=0),
            ops.concatenate(logits, axis=0),
            from_logits=True,
        )
        self.feature_queue.assign(
            ops.concatenate([first, self.feature_queue[:-count]], axis=0)
        )
        return loss

    def train_step(self, data):
        first, second, truth = data
        with tf.GradientTape() as tape:
            projections = [
                self.projection_head(self.encoder(each)) for each in (first, second)
            ]
            contrastive_loss = self.contrastive_loss(*projections)
        weights = (
            self.encoder.trainable_weights + self.projection_head.trainable_weights
        )
        grads = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(grads, weights))
        with tf.GradientTape() as tape:
            class_logits = self.linear_probe(self.encoder(first))
            probe_loss = self.probe_loss(truth, class_logits)
        weights = self.linear_probe.trainable_weights
        grads = tape.gradient(probe_loss, weights)
        self.probe_optimizer.apply_gradients(zip(grads, weights))
        self.probe_accuracy.update_state(truth, class_logits)
        return {
            "c_loss": contrastive_loss,
            "p_loss": probe_loss,
            "p_acc": self.probe_accuracy.result(),
        }


def nearest_neighbour_contrast(strategy):
    """Examples are compared, also with what a replica has seen before."""
    data = batches(images(), images(seed=2), labels())
    with strategy.scope():
        model = NNCLR()
        model.compile(
            contrastive_optimizer=keras.optimizers.Adam(),
            probe_optimizer=keras.optimizers.Adam(),
        )
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)
