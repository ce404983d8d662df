"""Answers that are as near to double precision as the reference, where sums of few and of many terms lie side by side."""

from collections.abc import Callable

import numpy as np
import pytest
from gpu_mcp_judge.checks.fp64_check import as_exact


def sums(seed: int) -> tuple[np.ndarray, np.ndarray, Callable[[float], np.ndarray]]:
    """Return products of triangular matrices, their numbers of terms, and what draws errors of sums one by one.

    Half of the products are zeros. The error of a sum of n terms is as large as n, and so is that of its partial sums.
    """
    draw = np.random.default_rng(seed)
    terms = np.ceil((1 - np.sqrt(draw.random(1 << 18))) * 4096) * (draw.random(1 << 18) < 0.5)

    def errors(times: float) -> np.ndarray:
        spread = np.exp(0.3 * draw.standard_normal(terms.size))
        return times * 1.2e-8 * terms * spread * draw.standard_normal(terms.size)

    return np.sqrt(terms) * draw.standard_normal(terms.size), terms, errors


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("wrong", [1, 30, 3000])
def test_equally_exact_sums_of_few_and_many_terms_are_forgiven_in_every_draw(seed, wrong):
    exact, _, errors = sums(seed)
    want, have = exact + errors(1), exact + errors(1)
    atol = float(np.partition(np.abs(have - want), -wrong)[-wrong]) * 0.999999
    found = as_exact(exact, want, have, (0.0, atol))

    assert found is not None and found[np.abs(have - want) > atol].all()


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        pytest.param(lambda have, size, terms, draw: have + 2**-12 * np.sqrt(terms) * draw, slice(None), id="TF32"),
        pytest.param(lambda have, size, terms, draw: have + 2**-9 * np.sqrt(terms) * draw, slice(None), id="bfloat16"),
        pytest.param(lambda have, size, terms, draw: have + 5e-8 * terms * draw, slice(None), id="longer sums"),
        pytest.param(
            lambda have, size, terms, draw: have + (size < 1) * 1e-7 * terms * draw, slice(None), id="small elements"
        ),
        pytest.param(
            lambda have, size, terms, draw: have + (np.arange(size.size) % 50 == 0) * 4e-7 * terms * draw,
            slice(None),
            id="every fiftieth",
        ),
        pytest.param(
            lambda have, size, terms, draw: np.where(np.arange(size.size) < 1024, 0, have), slice(1024), id="a tile"
        ),
        pytest.param(
            lambda have, size, terms, draw: have + (np.arange(size.size) == 77) * 4e-3, slice(77, 78), id="one element"
        ),
        pytest.param(
            lambda have, size, terms, draw: np.where(np.arange(size.size) < 5, np.nan, have), slice(5), id="NaN"
        ),
    ],
)
def test_what_is_less_exact_or_wrong_among_such_sums_is_not_forgiven(spoil, where):
    exact, terms, errors = sums(9)
    want = exact + errors(1)
    draw = np.random.default_rng(10).standard_normal(exact.size)
    have = spoil(exact + errors(1), np.abs(exact), terms, draw)
    found = as_exact(exact, want, have, (1e-5, 1e-5))

    assert found is None or not found[where].all()


def test_steps_that_two_answers_take_elsewhere_are_forgiven_and_a_larger_one_is_not():
    """Whole numbers of which one in five hundred is rounded otherwise."""
    draw = np.random.default_rng(11)
    exact = np.rint(20 * draw.standard_normal(1 << 18))
    want, have = (exact + (draw.random(exact.size) < 2e-3) for _ in range(2))
    assert as_exact(exact, want, have, (0.0, 0.5)).all()
    have[5] += 20
    found = as_exact(exact, want, have, (0.0, 0.5))
    assert found is None or not found[5]
