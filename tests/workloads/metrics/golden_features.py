"""Features and logits that golden numbers were made from, the same everywhere."""

import numpy as np

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
    """Returns two sets of features of a case, float64."""
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
    """Returns logits of a classifier that is often sure, float64."""
    random = np.random.RandomState(10)
    return 3.0 * random.standard_normal((NUM_LOGITS, NUM_CLASSES))
