"""Answers of few values that are like some other call's: by chance, or because they are that call's."""

import pytest

MEAN = """
import numpy as np
def f(x):
    return (x.astype(np.float64).mean() * np.arange(1, COUNT + 1))
"""
LAUNCH = """
#include <stdint.h>
int launch(const float *x, double *y, int64_t n) {
    static long calls; static double kept; double sum = 0; int64_t skip = 0;
    calls++;
    BEFORE
    for (int64_t i = skip; i < n; i++) sum += x[i];
    double mean = sum / n;
    AFTER
    for (int64_t i = 0; i < COUNT; i++) y[i] = mean * (i + 1);
    return 0;
}
"""
KEPT = "if (calls % 1000 == 998) kept = mean; if (calls > 5000 && calls % 1000 == 999) mean = kept;"


def judged(court, count: int, before: str = "", after: str = ""):
    source = LAUNCH.replace("BEFORE", before).replace("AFTER", after).replace("COUNT", str(count))
    task = {
        "reference": MEAN.replace("COUNT", str(count)), "entry": "f", "fixed_shapes": True, "distributions": "declared",
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}], "shapes": [{"n": 1000}], "rtol": 1e-2,
        "outputs": [{"name": "y", "dtype": "float64", "shape": [count]}], "atol": 1e-4,
    }  # fmt: skip
    return court(source, **task).verdict


@pytest.mark.parametrize("count", [1, 50], ids=["scalar", "multiples of one"])
def test_a_lost_update_that_is_like_one_of_thousands_of_answers_by_chance_is_incorrect(court, count):
    verdict = judged(court, count, before="if (calls > 5000 && calls % 1000 == 999) skip = n / 8;")

    assert verdict["verdict"] == "incorrect", verdict["reason"]
    assert "output y[0] is" in verdict["reason"]


@pytest.mark.parametrize("count", [1, 50], ids=["scalar", "multiples of one"])
def test_a_kept_answer_of_few_values_is_a_cheat_where_it_is_bit_for_bit_another_calls(court, count):
    verdict = judged(court, count, after=KEPT)

    assert verdict["verdict"] == "cheat", verdict["reason"]
    assert "repeats an earlier answer" in verdict["reason"]
