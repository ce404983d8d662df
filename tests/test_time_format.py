"""Measured times have three significant digits and a unit."""

import pytest

from gpu_mcp_server.time_format import format_time, format_time_range, three_digits


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0387, "38.7 ms"),
        (19.2e-6, "19.2 \u00b5s"),
        (61e-6, "61.0 \u00b5s"),
        (5e-6, "5.00 \u00b5s"),
        (0.0009999, "1.00 ms"),
        (0.0009994, "999 \u00b5s"),
        (5315e-6, "5.32 ms"),
        (12.0, "12.0 s"),
        (2345.0, "2,345 s"),
        (3e-9, "3.00 ns"),
        (2e-13, "0.000200 ns"),
        (0.0, "0 s"),
        (None, ""),
    ],
)
def test_a_time_has_three_digits_and_the_largest_unit_that_fits(seconds: float | None, said: str):
    assert format_time(seconds) == said


def test_both_ends_of_an_interval_have_one_unit_and_an_unknown_end_says_nothing():
    assert format_time_range(19.0e-6, 19.4e-6) == "19.0\u201319.4 \u00b5s"
    assert format_time_range(0.00095, 0.00105) == "0.950\u20131.05 ms"
    assert format_time_range(None, 1.0) == format_time_range(1.0, None) == ""


def test_digits():
    assert [three_digits(each) for each in (0, 999.4, 999.6, 0.5, 123456.7)] == [
        "0",
        "999",
        "1,000",
        "0.500",
        "123,457",
    ]
