"""Choice of a large output's elements that are computed in double precision."""

from types import SimpleNamespace

import numpy as np
import pytest
from gpu_mcp_judge.checks.fp64_check import LOOKED_AT, MOST, InDouble
from gpu_mcp_judge.correctness.rounding_bounds import Known
from gpu_mcp_judge.devices.device import Buffers
from gpu_mcp_judge.numerics.compare import compare
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.numerics.tensors import Tensor

RTOL, ATOL = 1e-4, 1e-3
COUNT = 1 << 20


class Given(Buffers):
    """One call with one output."""

    def __init__(self, expected, got):
        self.sets, self.well = 1, Well("cd" * 32)
        self.inputs = [Tensor("x", "float32", (expected.size,), ("n",), "normal")]
        self.outputs = [Tensor("y", expected.dtype.name, (expected.size,), ("n",), "normal")]
        self.both = expected, got

    def pair(self, call, output):
        return self.both


def look(expected, got):
    rounds = SimpleNamespace(well=Well("ab" * 32), task={"rtol": RTOL, "atol": ATOL})
    double, buffers = InDouble(rounds, {}), Given(expected, got)
    count, places = buffers.wrong_places(0, 0, double.tolerances, 1.0, MOST)
    mask = compare(expected, got, "float32", RTOL, ATOL).mask
    assert mask is not None
    assert count == np.count_nonzero(mask)
    assert mask[places].all()
    return mask, double._look(buffers, 0, 0, count, places)


def answers(noise, *, special=()):
    rng = np.random.default_rng(3)
    expected = rng.standard_normal(COUNT).astype(np.float32)
    got = expected + (noise * rng.standard_normal(COUNT)).astype(np.float32)
    for place, value in special:
        got[place] = value
    return expected, got


@pytest.mark.parametrize("noise", [1e-3, 1e-2, 1.0])
def test_those_farthest_beyond_the_tolerance_are_looked_at_and_no_others_as_such(noise):
    expected, got = answers(noise)
    mask, found = look(expected, got)
    wide = expected.astype(np.float64)
    far = np.where(mask, np.abs(got - wide) / (ATOL + RTOL * np.abs(wide)), 0)
    assert np.count_nonzero(mask) > MOST
    assert set(found.at[: found.farthest]) == set(np.argsort(far)[-LOOKED_AT:])
    drawn, others = np.split(found.at[found.farthest :], [found.drawn])
    assert mask[drawn].all()
    assert not mask[others].any()
    assert np.unique(found.at).size == found.at.size
    assert LOOKED_AT / 2 < drawn.size <= LOOKED_AT


def test_what_is_no_number_is_among_the_farthest():
    places = [(5, np.nan), (77, np.inf), (COUNT - 1, -np.inf), (1000, 3e38)]
    expected, got = answers(1e-2, special=places)
    _, found = look(expected, got)
    assert {place for place, _ in places} <= set(found.at[: found.farthest])


def test_where_most_is_no_number_as_many_are_looked_at():
    expected, got = answers(1e-2)
    got[: COUNT * 3 // 4] = np.nan
    _, found = look(expected, got)
    assert found.farthest == LOOKED_AT
    assert np.isnan(got[found.at[: found.farthest]]).all()


def test_of_few_wrong_ones_all_are_looked_at():
    expected, got = answers(0.0, special=[(9, 7.0), (COUNT // 2, -7.0)])
    _, found = look(expected, got)
    assert (found.farthest, found.drawn, found.at[:2].tolist()) == (0, 2, [9, COUNT // 2])
    assert found.at.size > LOOKED_AT / 2


@pytest.mark.parametrize(("lacks", "forgiven"), [(0.05, False), (0.0, True)])
def test_what_a_half_type_rounds_off_large_elements_excuses_no_small_ones_that_inputs_move_as_far(lacks, forgiven):
    """Inputs beside numbers from 0 to 1000 of the problem's own code, of which no input that moves knows anything."""
    rng = np.random.default_rng(5)
    x, own = rng.standard_normal(1 << 16), rng.uniform(0, 1000, 1 << 16)
    exact = x + own
    place = np.exp2(np.floor(np.log2(np.abs(exact))) - 10)
    expected = exact.astype(np.float16)
    got = (exact + place * rng.choice([-0.3, 0.3], x.size) - np.where(own < 8, lacks * x, 0)).astype(np.float16)
    left = without_as_exact(exact, expected, got, np.abs(x) * 2.0**-24)

    assert (left == [0]) == forgiven


@pytest.mark.parametrize("known", ["nothing", "what is unlike the errors"])
def test_what_is_as_exact_among_elements_of_its_size_is_forgiven_whatever_moves(known):
    rng = np.random.default_rng(6)
    exact = np.exp(3 * rng.standard_normal(1 << 16))
    expected, got = ((exact * (1 + 2.0**-20 * rng.standard_normal(exact.size))).astype(np.float32) for _ in range(2))
    moved = np.exp(2 * rng.standard_normal(exact.size)) if known != "nothing" else np.zeros(exact.size)
    assert without_as_exact(exact, expected, got, moved * 2.0**-24) == [0]


def without_as_exact(exact, expected, got, moved):
    """Return how many elements are wrong besides those as exact as the reference; some are without that."""
    rounds = SimpleNamespace(
        well=Well("ab" * 32), task={"rtol": 1e-6, "atol": 1e-6}, device=SimpleNamespace(kind="cpu")
    )
    double, buffers = InDouble(rounds, {}), Given(expected, got)
    double.read = lambda buffers, verb, count, call, picked: exact[picked["0"]]
    counts, looks = double._looks(buffers, 0)
    assert counts[0] > 0
    known = Known(np.zeros(looks[0].at.size), moved[looks[0].at])
    return double._left(buffers, 0, counts, looks, {}, [known])
