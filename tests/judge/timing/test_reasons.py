"""Places where an answer is wrong, in words that two calls bear out: real candidates in C."""

import pytest

from tests.judge.test_candidates_cpu import SMALL, launcher


def reason(court, body: str) -> str:
    verdict = court(launcher("static int calls; calls++; softmax(x, y, rows, cols);" + body), shapes=SMALL).verdict
    assert verdict["verdict"] == "incorrect"
    return verdict["reason"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("for (int64_t r = 0; r < rows; r++) y[r * cols + 3] = 1;", "8 of 800 elements are wrong, in two calls all in"),
        (
            "for (int64_t r = 0; r < rows; r++) y[r * cols + 3 + calls] = 1;",
            "8 of 800 elements are wrong, the first at [0, 4], [1, 4], [2, 4], [3, 4] (call 1 of 1, round 1",
        ),
        (
            "if (calls == 1) y[7] = y[8] = 1;",
            "the first at [0, 7], [0, 8] (call 1 of 1, round 1",
        ),
        ("for (int64_t i = 0; i < rows * cols; i++) y[i] = 1;", "800 of 800 elements are wrong (call 1"),
    ],
    ids=["in both calls", "elsewhere in the second", "in the first alone", "everywhere"],
)
def test_a_pattern_is_claimed_where_a_second_call_with_other_inputs_shows_it_too(court, body, said):
    text = reason(court, body)

    assert said in text
    assert ("one more, with other inputs, was right" in text) is ("calls == 1" in body)


def test_a_second_call_that_is_not_to_be_had_takes_nothing_from_the_verdict(court):
    text = reason(court, "y[7] = y[8] = 1; if (calls > 1) abort();")

    assert "2 of 800 elements are wrong, the first at [0, 7], [0, 8]" in text
