"""Compiled loops of the owner say and draw what NumPy does, bit by bit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_mcp_judge.numerics import compare, element_loops, random_inputs
from gpu_mcp_judge.timing import time_accounting

from tests.judge import harness


@pytest.fixture(scope="module")
def compiled() -> element_loops.Elements:
    made = element_loops.Elements()
    made.load(str(harness.loops("elements.c")))
    assert made.by == element_loops.COMPILED
    return made


@pytest.fixture
def loops(compiled: element_loops.Elements, monkeypatch: pytest.MonkeyPatch) -> Iterator[element_loops.Elements]:
    monkeypatch.setattr(compare, "ELEMENTS", compiled)
    monkeypatch.setattr(random_inputs, "ELEMENTS", compiled)
    yield compiled


@pytest.mark.parametrize("distribution", ["normal", "uniform", "offset", "large", "outliers", "zeros"])
@pytest.mark.parametrize("shape", [(1, 5), (3, 64_000), (2, (1 << 20) + 77), (7, 1023)], ids=str)
def test_inputs_are_the_same_whoever_draws_them(compiled, monkeypatch, distribution, shape):
    found = []
    for loops in (element_loops.Elements(), compiled):
        monkeypatch.setattr(random_inputs, "ELEMENTS", loops)
        well, into = random_inputs.Well("ab" * 32), np.full(shape, np.nan, dtype=np.float32)
        for _ in range(2):
            well.fill(into, "float32", distribution)
        found.append(into)
    assert found[0].tobytes() == found[1].tobytes()


def test_errors_are_the_same_whoever_compares(compiled, monkeypatch):
    rng = np.random.default_rng(5)
    expected = rng.standard_normal(200_001).astype(np.float32)
    got = (expected * (1 + rng.uniform(-1e-5, 1e-5, expected.size))).astype(np.float32)
    plain = compare.compare(expected, got, "float32", 1e-4, 1e-6)
    monkeypatch.setattr(compare, "ELEMENTS", compiled)
    assert compare.compare(expected, got, "float32", 1e-4, 1e-6)[:3] == pytest.approx(plain[:3], rel=1e-6)
    assert plain.wrong == 0 < plain.max_abs


@pytest.mark.parametrize("place", [0, 1023, 1024, 70_000])
@pytest.mark.parametrize(
    ("want", "have"),
    [(1, 1.01), (1, np.nan), (np.nan, 1), (1, np.inf), (np.inf, 1), (-np.inf, np.inf), (0, 1e-3)],
)
def test_what_is_wrong_passes_no_compiled_loop(loops, place, want, have):
    expected = np.ones(70_001, dtype=np.float32)
    got = expected.copy()
    expected[place], got[place] = want, have
    difference = compare.compare(expected, got, "float32", 1e-4, 1e-6)
    assert difference.wrong == 1
    assert difference.mask is not None
    assert np.flatnonzero(difference.mask).tolist() == [place]


@pytest.mark.parametrize("atol", [0.0, 1e-6, 1e-5])
def test_wrong_elements_are_the_same_whoever_marks_them(compiled, monkeypatch, atol):
    rng, special = np.random.default_rng(6), np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-42, 3e38, 1], np.float32)
    expected = np.concatenate([rng.standard_normal(100_003).astype(np.float32), np.repeat(special, special.size)])
    noise = rng.uniform(-3e-4, 3e-4, 100_003).astype(np.float32)
    got = np.concatenate([expected[:100_003] + noise, np.tile(special, special.size)])
    plain = compare.compare(expected, got, "float32", 1e-4, atol)
    monkeypatch.setattr(compare, "ELEMENTS", compiled)
    difference = compare.compare(expected, got, "float32", 1e-4, atol)
    assert plain.mask is not None
    assert difference.mask is not None
    assert 10_000 < plain.wrong == difference.wrong == np.count_nonzero(difference.mask)
    assert np.array_equal(plain.mask, difference.mask)
    assert difference[1:3] == pytest.approx(plain[1:3], rel=1e-6)


def test_a_nan_matches_a_nan_and_an_infinity_itself_all_the_same(loops):
    same = np.array([np.nan, np.inf, -np.inf, 1], dtype=np.float32)
    assert compare.compare(same, same.copy(), "float32", 1e-4, 1e-6).wrong == 0


def test_arrays_of_other_lengths_steps_and_byte_orders_are_not_read_as_what_they_are_not(loops):
    expected = np.arange(20, dtype=np.float32)
    got = expected.copy()
    got[7] = -1
    for want, have in ((expected[::-1], got[::-1]), (expected.astype(">f4"), got.astype(">f4"))):
        assert compare.compare(want, have, "float32", 1e-4, 1e-6).wrong == 1
    assert compare.compare(expected[:0], got[:0], "float32", 1e-4, 1e-6) == (0, 0.0, 0.0, None)
    with pytest.raises(ValueError, match="broadcast"):
        compare.compare(expected, got[:19], "float32", 1e-4, 1e-6)


def test_without_the_library_numpy_serves(tmp_path):
    loops = element_loops.Elements()
    loops.load(str(tmp_path / "elements.so"))
    one = np.ones(4, dtype=np.float32)
    assert (loops.by, loops.mark(one, one, 0, 0, 1)) == (element_loops.INTERPRETED, None)


def test_a_process_that_waited_began_when_it_was_told_to(monkeypatch):
    import time

    monkeypatch.setenv(time_accounting.BEGAN, repr(time.clock_gettime(time.CLOCK_BOOTTIME) - 5))
    assert 5 <= time_accounting.since_start_s() < 60


def test_what_the_tests_compile_for_themselves_goes_with_them(tmp_path: Path):
    script = "from tests.judge.harness import loops; print(loops('elements.c').is_file())"
    told = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=told, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert list(tmp_path.iterdir()) == []
