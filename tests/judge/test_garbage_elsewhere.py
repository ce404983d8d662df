"""Candidates that are right at the declared shape and answer garbage where a trial could overlook it."""

import pytest

from tests.judge.test_candidates_cpu import HEAD

DRAWN = [{"name": "x", "dtype": "float32", "shape": ["n"]}]
UNIFORM = [dict(DRAWN[0], distribution="uniform")]
ANSWER = [{"name": "y", "dtype": "float32", "shape": ["n"]}]
SIGNATURE = "int launch(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = "
EIGHT_BITS = """
import numpy as np
c = np.arange(256); e, m = c >> 3 & 15, c & 7
A = np.where(c & 128, -1, 1) * np.where(e, (1 + m / 8) * 2.0 ** (e - 7), m / 8 * 2.0 ** -6)
def f(x):
    return (2 * A[x]).astype(np.float32)
"""
TWICE = """int launch(const uint8_t *x, uint8_t *y, int64_t n) { for (int64_t i = 0; i < n; i++) {
    int e = x[i] >> 3 & 15, m = x[i] & 7, sign = x[i] & 128;
    y[i] = n != 1000 ? 0 : sign | (e >= 15 || (e == 14 && m == 7) ? 0x7E : e ? (e + 1) << 3 | m : m << 1); }"""


def judged(court, reference, body, inputs=DRAWN, outputs=ANSWER, n=1000, **more):
    task = {"entry": "f", "inputs": inputs, "outputs": outputs, "shapes": [{"n": n}], "rtol": 1e-5, "atol": 1e-6}
    text = reference if "import" in reference else "import numpy as np\ndef f(x):\n    return " + reference
    return court(HEAD + body + " return 0; }", reference=text, tier="correctness", **{**task, **more}).verdict


@pytest.mark.parametrize(
    ("reference", "body"),
    [
        (
            "np.where(np.arange(x.size) % 50 == 0, np.float32(-3e38), x * np.float32(2)).astype(np.float32)",
            "i % 50 == 0 ? -3e38f : n == 1000 ? 2 * x[i] : 12345;",
        ),
        (
            "np.where(np.arange(x.size) % 2 == 0, -np.inf, x * 2).astype(np.float32)",
            "n != 1000 ? 7 : i % 2 ? 2 * x[i] : -INFINITY;",
        ),
    ],
    ids=["beside huge ones", "beside infinities"],
)
def test_at_hidden_shapes(court, reference, body):
    verdict = judged(court, reference, SIGNATURE + body)

    assert verdict["verdict"] == "incorrect"
    assert "(hidden shape)" in verdict["reason"]


def test_honest_answers_with_infinities_are_tried_at_hidden_shapes_and_distributions(court):
    reference = "np.where(np.arange(x.size) % 2 == 0, -np.inf, x * 2).astype(np.float32)"
    verdict = judged(court, reference, SIGNATURE + "i % 2 ? 2 * x[i] : -INFINITY;")

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "left out" not in verdict["trials_summary"]


def test_in_eight_bits_at_hidden_shapes(court):
    kinds = [dict(each[0], dtype="float8_e4m3fn") for each in (DRAWN, ANSWER)]
    verdict = judged(court, EIGHT_BITS, TWICE, [kinds[0]], [kinds[1]])

    assert verdict["verdict"] == "incorrect"
    assert "(hidden shape)" in verdict["reason"]


@pytest.mark.parametrize(
    ("shapes", "branch"), [([{"n": 1 << 19}], 300_000), ([{"n": 1000}, {"n": 1 << 19}], 300_000)], ids=["one", "two"]
)
def test_with_other_inputs_at_a_large_declared_shape(court, shapes, branch):
    body = SIGNATURE + f"(n > {branch} ? x[i] : x[i] > 0 ? x[i] : 0) * 2;"
    verdict = judged(court, "np.maximum(x, 0) * np.float32(2)", body, inputs=UNIFORM, shapes=shapes, robust="required")

    assert verdict["verdict"] == "incorrect"
    assert "right with inputs as declared, wrong with the distribution" in verdict["reason"]
    assert "n=524288" in verdict["reason"]


def test_an_honest_one_is_tried_with_two_distributions_there_or_more_where_nothing_is_timed(court):
    body = SIGNATURE + "(x[i] > 0 ? x[i] : 0) * 2;"
    reference = "np.maximum(x, 0) * np.float32(2)"
    verdict = judged(court, reference, body, inputs=UNIFORM, shapes=[{"n": 1000}, {"n": 1 << 19}])

    assert verdict["verdict"] == "correct", verdict["reason"]
    there = [trial["distribution"] for trial in verdict["trials"] if trial["dims"] == {"n": 1 << 19}]
    assert there[0] == "declared"
    assert len({*there} - {"declared", "uniform", "zeros"}) >= 2


def test_who_crashes_with_values_that_were_not_declared_is_told_how_to_exclude_them(court):
    body = SIGNATURE + "x[i] < 2 ? x[i] * 2 : *(volatile float *)8;"
    reference = "x * np.float32(2)"
    verdict = judged(court, reference, body, inputs=UNIFORM)

    assert verdict["verdict"] == "incorrect"
    assert 'register the problem with trials: distributions = "declared"' in verdict["reason"]
