"""FID against closed forms, published implementations and simulation.

The published numbers are in ``goldens.json``, written by ``write_goldens.py`` from
torch-fidelity 0.4.0 (torch 2.15.0) and TF-GAN 2.1.0 (TensorFlow 2.21.0).
"""

import numpy as np
import pytest

from workloads.metrics import fid
from workloads.metrics.fid import Gaussian
from workloads.metrics.fid_infinity import fid_infinity, intercept
from workloads.metrics.moments import Moments

RTOL_CLOSED_FORM = 1e-12  # float64, of some hundred operations
CASES = ("gaussian", "rectified", "fewer_examples_than_features")


def rotation(num_features, rng):
    return np.linalg.qr(rng.normal(size=(num_features, num_features)))[0]


def exact_moments(mean, covariance):
    """Returns the moments of so many examples that they are the distribution's."""
    count = 10**9
    return Moments(num_examples=count + 1, mean=mean, scatter=covariance * count)


def test_one_dimension_has_its_closed_form():
    """(m1 - m2)^2 + (s1 - s2)^2 for standard deviations s."""
    first = Gaussian.with_covariance(np.array([1.0]), np.array([[4.0]]))
    second = Gaussian.with_covariance(np.array([-2.0]), np.array([[0.25]]))

    value = fid.distance(first, second)

    assert pytest.approx(3.0**2 + 1.5**2, rel=RTOL_CLOSED_FORM) == value


@pytest.mark.parametrize("num_features", [1, 7, 64])
def test_rotated_diagonal_gaussians_have_their_closed_form(num_features, rng):
    """With shared axes: |m1 - m2|^2 + sum (sqrt l1 - sqrt l2)^2, in any rotation."""
    axes = rotation(num_features, rng)
    first, second = rng.uniform(0.01, 9.0, size=(2, num_features))
    means = rng.normal(size=(2, num_features))
    expected = ((means[0] - means[1]) ** 2).sum()
    expected += ((np.sqrt(first) - np.sqrt(second)) ** 2).sum()

    value = fid.distance(
        Gaussian.with_covariance(means[0], (axes * first) @ axes.T),
        Gaussian.with_covariance(means[1], (axes * second) @ axes.T),
    )

    assert pytest.approx(expected, rel=RTOL_CLOSED_FORM * num_features) == value


def test_two_by_two_that_do_not_commute_have_their_closed_form():
    """In two dimensions tr (S1 S2)^1/2 = sqrt(tr S1 S2 + 2 sqrt(det S1 S2))."""
    first = np.array([[2.0, 1.0], [1.0, 3.0]])
    second = np.array([[5.0, -2.0], [-2.0, 1.0]])
    product = first @ second
    root = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    expected = np.trace(first) + np.trace(second) - 2 * root

    value = fid.distance(
        Gaussian.with_covariance(np.zeros(2), first),
        Gaussian.with_covariance(np.zeros(2), second),
    )

    assert pytest.approx(expected, rel=RTOL_CLOSED_FORM) == value


def test_tiny_and_missing_directions_keep_their_digits(rng):
    """Eigenvalues over twelve decades, and zeros, cost no more than rounding.

    Square roots of the eigenvalues of the product are wrong by 1e-8 here.
    """
    axes = rotation(64, rng)
    first = np.concatenate([10.0 ** np.linspace(2, -10, 50), np.zeros(14)])
    second = first[::-1] + first
    expected = ((np.sqrt(first) - np.sqrt(second)) ** 2).sum()

    value = fid.distance(
        Gaussian.with_covariance(np.zeros(64), (axes * first) @ axes.T),
        Gaussian.with_covariance(np.zeros(64), (axes * second) @ axes.T),
    )

    # Eigenvalues below 64 eps of the largest drown: their roots are below 1e-6.
    assert pytest.approx(expected, rel=1e-10) == value


def test_a_distance_is_symmetric_and_zero_to_itself(rng):
    """d(a, b) = d(b, a), d(a, a) = 0."""
    first = Moments.of(rng.normal(size=(50, 8)))
    second = Moments.of(rng.gamma(1.0, size=(60, 8)))

    forth = fid.frechet_distance(first, second)
    back = fid.frechet_distance(second, first)

    assert pytest.approx(forth, rel=RTOL_CLOSED_FORM) == back
    assert pytest.approx(0.0, abs=1e-12) == fid.frechet_distance(first, first)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("source", "rel"),
    # Both take square roots of eigenvalues of products: 1e-8 where some are zero.
    # TF-GAN drops those below 1e-10, and divides the covariance by n - 1 too.
    [("torch_fidelity", 1e-6), ("tensorflow_gan", 1e-5)],
)
def test_fid_is_the_published_one(case, source, rel, golden_features, goldens):
    """Fixed features give the numbers of torch-fidelity and TF-GAN."""
    first, second = golden_features.features(case)

    value = fid.fid(first, Moments.of(second)).value

    assert pytest.approx(goldens[source]["fid"][case], rel=rel) == value


def test_intervals_cover_and_extrapolation_removes_the_bias():
    """Of 150 generators' draws, about 95 % of intervals hold what they promise.

    The interval of the FID promises the mean FID of that n; that of FID-infinity the
    distance of the distributions. With 150 draws, 0.90 and 1 are four standard errors
    from 0.95.
    """
    num_features, num_draws = 8, 150
    random = np.random.default_rng(0)
    real = np.diag(np.linspace(0.2, 1.0, num_features))
    axes = rotation(num_features, random)
    mixing = axes * np.sqrt(np.linspace(0.4, 1.5, num_features))
    mean = np.full(num_features, 0.1)
    truth = fid.distance(
        Gaussian.with_covariance(mean, mixing @ mixing.T),
        Gaussian.with_covariance(np.zeros(num_features), real),
    )
    reference = exact_moments(np.zeros(num_features), real)

    draws = [
        random.normal(size=(200, num_features)) @ mixing.T + mean
        for _ in range(num_draws)
    ]
    plain = [fid.fid(draw, reference) for draw in draws]
    infinite = [fid_infinity(draw, reference) for draw in draws]

    centre = np.mean([score.value for score in plain])
    spread = np.std([score.value for score in infinite]) / np.sqrt(num_draws)
    assert centre - truth > 5 * spread  # the bias is there, and is removed:
    assert abs(np.mean([s.value for s in infinite]) - truth) < 3 * spread
    for scores, target in ((plain, centre), (infinite, truth)):
        covered = np.mean([s.low <= target <= s.high for s in scores])
        assert 0.90 <= covered <= 1.0
        widths = np.array([s.high - s.value for s in scores]) / 1.96
        ratio = widths.mean() / np.std([s.value for s in scores])
        assert 0.85 <= ratio <= 1.3


def test_the_line_is_least_squares(rng):
    """The extrapolated value is the constant of NumPy's fitted line."""
    x, y = np.arange(1, 8) / 50.0, rng.normal(size=7)

    assert pytest.approx(np.polyfit(x, y, 1)[1], rel=1e-10) == intercept(x, y)


def test_a_figure_says_how_much_is_behind_it(rng):
    """Name, unit, n and how the interval was made are in it."""
    reference = Moments.of(rng.normal(size=(40, 4)))

    score = fid.fid(rng.normal(size=(60, 4)), reference)
    infinite = fid_infinity(rng.normal(size=(60, 4)), reference)

    assert (score.name, score.unit, score.num_examples) == ("fid", "1", 60)
    assert "excludes the bias at this n" in score.method
    assert infinite.name == "fid_infinity"
    assert "7 sizes from 8 up" in infinite.method


def test_a_singular_covariance_has_a_value_but_no_interval():
    """With n not above the number of features the reason stands in its place."""
    random = np.random.default_rng(1)
    score = fid.fid(random.normal(size=(5, 8)), Moments.of(random.normal(size=(9, 8))))

    assert not score.has_interval
    assert score.method == (
        "no interval: 5 examples for 8 features make the covariance singular"
    )


def test_a_collapsed_generator_has_a_score():
    """Equal images have covariance zero: |m - m_r|^2 + tr S_r, and no spread."""
    real = exact_moments(np.zeros(3), np.eye(3))

    score = fid.fid(np.ones((10, 3)), real)

    assert pytest.approx(6.0) == score.value
    assert (score.low, score.high) == (score.value, score.value)


def test_wrong_input_is_refused(rng):
    features = rng.normal(size=(23, 4))
    with pytest.raises(ValueError, match="length 4 and 3 cannot be compared"):
        fid.fid(features, Moments.of(features[:, :3]))
    with pytest.raises(ValueError, match=r"sizes of at least 2 examples .* need 24"):
        fid_infinity(features, Moments.of(features))
    with pytest.raises(ValueError, match="num_sizes=2: a line with a residual"):
        fid_infinity(features, Moments.of(features), num_sizes=2)
    with pytest.raises(
        ValueError, match=r"eigenvalue -1\.0: those.*was it made from features"
    ):
        Gaussian.with_covariance(np.zeros(2), np.diag([-1.0, 1.0]))
