"""Random trainings: Keras models, optimizers, epochs, failures and checkpoints."""
