"""Places of wrong elements, and what they hold instead."""

import numpy as np
import pytest

from gpu_mcp_server.judge.numerics.error_location import misplaced
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
