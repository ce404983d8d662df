"""Places of wrong elements, and what they hold instead."""

import numpy as np
import pytest

from gpu_mcp_server.judge.numerics.error_location import describe_common_error, misplaced
from gpu_mcp_server.judge.numerics.tensors import Tensor


@pytest.mark.parametrize(
    ("got", "told"),
    [(np.float32(-1e30), ""), (np.float32(np.nan), ""), (None, "they hold what belongs 1 element before")],
    ids=["large", "nan", "shifted"],
)
def test_what_stands_for_an_infinity_is_not_taken_for_an_infinity_of_elsewhere(got, told):
    """A masked score is minus infinity, and a finite stand-in for it is a mistake of its own."""
    tensor = Tensor("y", "float32", (20, 20), ("n", "m"), "")
    expected = np.where(np.tri(20, dtype=bool), np.arange(400, dtype=np.float32).reshape(20, 20), -np.inf).ravel()
    answer = np.roll(expected, 1) if got is None else np.where(np.isinf(expected), got, expected)

    assert misplaced(expected, answer, answer != expected, tensor) == told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: -x * np.float32(1 + 1e-4), "they are what is expected with the other sign; where either is right"),
        (lambda x: x / 8, "they are 0.125 times what is expected"),
        (lambda x: x - 1, "they are off by -1 each"),
        (lambda x: x * 0, ""),
        (lambda x: x * 0 + 1e4, ""),
        (lambda x: x * np.float32(np.inf), ""),
        (lambda x: x * (1 + np.sin(np.arange(400, dtype=np.float32)) / 256), ""),
        (lambda x: np.where(np.arange(400) % 2 == 0, -x, 2 * x), ""),
    ],
    ids=["sign", "factor", "difference", "zeros", "one large number", "infinite", "rounded", "two factors"],
)
def test_what_all_wrong_elements_are_off_by_is_told(change, told):
    expected = np.linspace(3, 9, 400, dtype=np.float32)
    said = describe_common_error(expected, change(expected).astype(np.float32), np.ones(400, dtype=bool))

    assert said.startswith(told) and bool(said) == bool(told)


def test_numbers_that_count_from_zero_are_off_by_one():
    expected = np.array([3, 9, 4, 7, 7, 8])

    assert describe_common_error(expected, expected - 1, np.ones(6, dtype=bool)) == "they are off by -1 each"
