"""The first lines of a verdict."""

from typing import Any

from gpu_mcp_server.models.evaluation import Evaluation

OF: Any = {"attempt_id": "a-1", "problem_id": "p-1", "problem_hash": "0", "language": "c", "host": "local"}


def test_the_first_line_says_what_correct_covers_and_whether_it_is_robust():
    covers = "2 declared shapes, 14 hidden shapes (larger than declared to cols=65589), inputs as declared"
    robust = "no; large: looks like TF32 or float16"
    text = Evaluation(status="judged", verdict="correct", covers=covers, robust=robust, **OF).summary()

    assert text.splitlines()[0] == f"verdict: correct for {covers}; robust: {robust}"


def test_the_second_line_says_which_declared_shapes_pass_and_which_fail():
    declared = "right at n=64; wrong at n=100"
    text = Evaluation(
        status="judged", verdict="incorrect", reason="n=100: y[0] is 2", declared=declared, **OF
    ).summary()

    assert text.splitlines()[:2] == ["verdict: incorrect - n=100: y[0] is 2", f"declared shapes: {declared}"]
