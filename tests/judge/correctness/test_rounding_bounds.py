"""Tolerance at shapes and distributions for which none was declared: rounding, and nothing beside it."""

import dataclasses

import numpy as np
import pytest
from gpu_mcp_judge.correctness import fp64_reference, rounding_bounds

SINGLE = np.float32


def in_order(x):
    return np.cumsum(x, axis=1, dtype=SINGLE)[:, -1]


def softmax(x, total=lambda e: e.sum(axis=1)):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / total(e)[:, None]


def normed(x, mean=lambda x: x.mean(axis=1)):
    x = x - mean(x)[:, None]
    return x / np.sqrt(mean(x * x) + x.dtype.type(1e-5))[:, None]


def mean_in_order(x):
    return in_order(x) / SINGLE(x.shape[1])


PAIRS = {
    "sum": (lambda x: x.sum(axis=1), in_order),
    "softmax": (softmax, lambda x: softmax(x, in_order)),
    "layer norm": (normed, lambda x: normed(x, mean_in_order)),
    "scan": (lambda x: np.cumsum(x.astype(np.float64), axis=1).astype(x.dtype), lambda x: np.cumsum(x, axis=1)),
    "norm": (lambda x: np.sqrt((x * x).sum(axis=1)), lambda x: np.sqrt(in_order(x * x))),
}
"""A reference, and the same with every sum in order and in float32."""


def tensor(name, dtype, *shape):
    return rounding_bounds.Tensor(name, dtype, shape, tuple(str(n) for n in range(len(shape))), "normal")


def allowed(reference, x, dtype="float32"):
    """Return the reference's answer and the slack of each element."""
    rng, exact = np.random.default_rng(1), reference(x.astype(np.float64))
    half = fp64_reference.EPSILON[dtype] / 2
    nudged = [reference(x.astype(np.float64) * (1 + half * rng.uniform(-1, 1, x.shape))) for _ in range(4)]
    expected = reference(x)
    at = np.arange(expected.size)
    moved = np.maximum.reduce([fp64_reference.absolute_differences(one, exact, at) for one in nudged])
    known = rounding_bounds.Known(fp64_reference.absolute_differences(expected, exact, at), moved)
    flat = np.ravel(expected).astype(np.float64)
    return flat, rounding_bounds.slack(flat, [tensor("x", dtype, *x.shape)], tensor("y", dtype, flat.size), known)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 37), (7, 1000), (33, 4000)])
@pytest.mark.parametrize("drawn", ["normal", "offset", "outliers", "large"])
def test_sums_in_order_are_forgiven_wherever_they_differ_from_the_reference(name, shape, drawn):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape)
    x = {"normal": x, "offset": x + 3, "large": x * 1000}.get(drawn, np.where(rng.random(shape) < 1e-3, x * 100, x))
    reference, candidate = PAIRS[name]
    expected, slack = allowed(reference, x.astype(SINGLE))
    got = np.ravel(candidate(x.astype(SINGLE))).astype(np.float64)

    assert not rounding_bounds.beyond(got, expected, 1e-7 + 1e-5 * np.abs(expected) + slack).any()


def recursion(r, add=np.sum):
    """Predict a series from its past by Levinson and Durbin, which loses digits where reflections exceed one."""
    answer, beta = np.array([-r[0]]), 1.0
    for k in range(1, len(r)):
        beta *= 1 - answer[-1] ** 2
        alpha = -(r[k] + add(r[:k][::-1] * answer)) / beta
        answer = np.append(answer + alpha * answer[::-1], alpha)
    return answer


def allowed_in_double(reference, x):
    """Return the answer of a reference that nothing is wider than, and the slack of each element."""
    item, expected = tensor("x", "float64", *x.shape), reference(x)
    moved = [np.abs(reference(fp64_reference.widened(item, x, True)) - expected) for _ in range(4)]
    known = rounding_bounds.Known(np.zeros(expected.size), np.maximum.reduce(moved))
    return expected, rounding_bounds.slack(expected, [item], tensor("y", "float64", expected.size), known)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_recursion_in_double_precision_loses_is_forgiven_and_float32_within_it_is_not(seed):
    r = np.random.default_rng(seed).standard_normal(300)
    expected, slack = allowed_in_double(recursion, r)
    one_by_one = recursion(r, lambda terms: np.cumsum(terms)[-1])
    coarse = recursion(r, lambda terms: np.float64(np.float32(terms.sum())))

    assert rounding_bounds.beyond(one_by_one, expected, 1e-14 * np.abs(expected)).mean() > 0.9
    assert not rounding_bounds.beyond(one_by_one, expected, slack).any()
    assert rounding_bounds.beyond(coarse, expected, slack).mean() > 0.99


def test_a_double_that_jumps_when_its_input_moves_is_no_excuse():
    x = np.arange(1000.0)
    expected, slack = allowed_in_double(np.floor, x)

    assert slack.max() < 1e-6
    assert rounding_bounds.beyond(np.ceil(x - 0.5), expected - 1, slack).all()


@pytest.mark.parametrize("huge", [-1e9, -3e38])
@pytest.mark.parametrize("every", [2, 50])
def test_what_a_mask_is_filled_with_forgives_nothing_beside_it(huge, every):
    x = np.random.default_rng(3).standard_normal((40, 100)).astype(SINGLE)
    filled = np.arange(x.size).reshape(x.shape) % every == 0

    def masked(x):
        return np.where(filled, x.dtype.type(huge), 2 * x)

    expected, slack = allowed(masked, x)
    ordinary = ~filled.ravel()
    assert (slack[ordinary] <= 1e-4 * np.abs(expected[ordinary])).all()
    assert rounding_bounds.beyond(np.zeros(x.size), expected, slack)[ordinary].all()


@pytest.mark.parametrize("dtype", [*fp64_reference.EPSILON])
@pytest.mark.parametrize("sizes", ["ordinary", "masked"])
def test_without_double_precision_zeros_are_not_forgiven_in_any_type(dtype, sizes):
    expected = np.random.default_rng(4).standard_normal(1000)
    expected[::3] = -1e9 if sizes == "masked" else 1.0
    slack = rounding_bounds.slack(expected, [tensor("x", "int32", 1000)], tensor("y", dtype, 1000), None)

    assert rounding_bounds.beyond(np.zeros(1000), expected, slack).mean() > 0.95


def test_with_it_zeros_are_not_forgiven_where_inputs_have_eight_bits():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        x = np.random.default_rng(5).standard_normal((10, 100))
        expected, slack = allowed(lambda x: 2 * x, x, dtype)
        assert (slack < 0.7 * np.abs(expected)).all()


def test_infinities_must_be_met():
    expected, got = np.array([np.inf, -np.inf, np.inf, 1.0]), np.array([np.inf, 7.0, np.nan, np.inf])
    slack = rounding_bounds.slack(expected, [tensor("x", "float32", 4)], tensor("y", "float32", 4), None)

    assert np.isfinite(slack).all()
    assert rounding_bounds.beyond(got, expected, slack + 1e30).tolist() == [False, True, True, True]


@pytest.mark.parametrize("given", [True, False])
def test_what_is_below_the_smallest_normal_number_may_become_zero(given):
    expected = np.array([1e-39, -1e-45, 1e-30, 1.0])
    known = rounding_bounds.Known(np.zeros(4), np.zeros(4)) if given else None
    slack = rounding_bounds.slack(expected, [tensor("x", "float32", 1)], tensor("y", "float32", 4), known)

    assert rounding_bounds.beyond(np.zeros(4), expected, slack).tolist()[:2] == [False, False]
    assert not given or rounding_bounds.beyond(np.zeros(4), expected, slack).tolist()[2:] == [True, True]


def rows_of_zeros(dtype="float32"):
    """Return answers to zeros of a layer and a norm over samples: by the reference, with sums in order, their slack."""
    rng = np.random.default_rng(6)
    x, weights, bias = np.zeros((5000, 16), SINGLE), rng.standard_normal((16, 8)), rng.uniform(-0.4, 0.4, 8)

    def layer(x, mean):
        y = x @ weights.astype(x.dtype) + bias.astype(x.dtype)
        y = y - mean(y)
        return y / np.sqrt(mean(y * y) + x.dtype.type(1e-5))

    items = [tensor("x", dtype, *x.shape), tensor("w", dtype, 16, 8)]
    items = [
        dataclasses.replace(item, distribution=drawn) for item, drawn in zip(items, ("zeros", "weights"), strict=True)
    ]
    assert fp64_reference.at_rest(items, [x, weights]) and not fp64_reference.at_rest(items, [x + 1, weights])
    exact = layer(x.astype(np.float64), lambda y: y.mean(axis=0))
    nudged = [layer(fp64_reference.widened(items[0], x, True, rest=True), lambda y: y.mean(axis=0)) for _ in range(4)]
    expected = layer(x, lambda y: y.mean(axis=0, dtype=np.float64).astype(y.dtype))
    got = layer(x, lambda y: np.cumsum(y, axis=0, dtype=y.dtype)[-1] / y.dtype.type(len(y)))
    at = np.arange(expected.size)
    moved = np.maximum.reduce([fp64_reference.absolute_differences(one, exact, at) for one in nudged])
    known = rounding_bounds.Known(fp64_reference.absolute_differences(expected, exact, at), moved)
    flat = np.ravel(expected).astype(np.float64)
    return flat, np.ravel(got), rounding_bounds.slack(flat, items, tensor("y", dtype, flat.size), known)


def test_what_a_norm_over_samples_that_are_all_alike_makes_of_rounding_is_forgiven():
    expected, got, slack = rows_of_zeros()

    assert np.abs(got - expected).max() > 1e-3
    assert not rounding_bounds.beyond(got, expected, 1e-4 + 1e-4 * np.abs(expected) + slack).any()
    assert rounding_bounds.beyond(np.full(expected.size, 2.0), expected, slack).all()


def test_a_norm_of_a_model_may_add_up_all_its_data_and_a_problem_without_weights_one_extent():
    x, y = tensor("x", "float32", 4, 8, 64, 64), tensor("y", "float32", 4, 8, 64, 64)
    weights = dataclasses.replace(tensor("w", "float32", 8), distribution="weights")

    assert rounding_bounds.summation([x], y) == pytest.approx(63 * 2.0**-24)
    assert rounding_bounds.summation([x, weights], y) == pytest.approx((rounding_bounds.MOST_TERMS - 1) * 2.0**-24)
