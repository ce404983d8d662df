"""A wrong answer's differences that look like a lower precision, and those that are a mistake."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.devices import device
from gpu_mcp_judge.timing import rounds

from gpu_mcp_server.judge.correctness.error_statistics import (
    coarse_difference,
    distribution,
    lower_precision,
    suspicion,
    tf32_default,
)

Array = np.ndarray
DRAWN = np.random.default_rng(7)
A, B = (DRAWN.standard_normal(shape, dtype=np.float32) for shape in ((256, 27), (27, 300)))
EXACT = A @ B


def cut(values: Array, bits: int) -> Array:
    """Round float32 to so many bits of mantissa behind the point."""
    drop = 23 - bits
    whole = values.view(np.uint32) + np.uint32(1 << (drop - 1))
    return (whole & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32)


def cut_off(values: Array, bits: int) -> Array:
    """Keep so many bits of mantissa behind the point, as tl.dot does for TF32."""
    return (values.view(np.uint32) & np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)).view(np.float32)


def product(bits: int, then: Callable[[Array], Array] = lambda y: y) -> tuple[Array, Array]:
    return then(EXACT), then(cut(A, bits) @ cut(B, bits))


def relu(y: Array) -> Array:
    return np.maximum(y, 0)


def with_some(share: float, factor: float) -> tuple[Array, Array]:
    wrong = DRAWN.random(EXACT.shape) < share
    return EXACT, np.where(wrong, EXACT * np.float32(factor), EXACT)


def with_tail(factor: float) -> tuple[Array, Array]:
    wrong = EXACT.copy()
    wrong[:, 240:] *= np.float32(factor)
    return EXACT, wrong


INTEGERS = np.exp(DRAWN.uniform(3, 8, 10_000)).astype(np.int64).astype(np.float32)


@pytest.mark.parametrize(
    ("pair", "like"),
    [
        pytest.param(product(10), "looks like TF32 or float16", id="TF32"),
        pytest.param((EXACT, cut_off(A, 10) @ cut_off(B, 10)), "looks like TF32 or float16", id="TF32, cut off"),
        pytest.param((EXACT, cut(A, 7) @ B), "looks like bfloat16", id="one operand in bfloat16"),
        pytest.param(product(10, relu), "looks like TF32 or float16", id="TF32, half of it zero"),
        pytest.param(product(7), "looks like bfloat16", id="bfloat16"),
        pytest.param((EXACT, EXACT.astype(np.float16).astype(np.float32)), "looks like TF32 or float16", id="float16"),
        pytest.param(product(20), "", id="float32 in another order"),
        pytest.param((EXACT, EXACT * np.float32(1.01)), "", id="another factor"),
        pytest.param((EXACT, EXACT * np.float32(1.0004)), "", id="a factor as small as rounding"),
        pytest.param((EXACT, EXACT + np.float32(0.001)), "", id="another constant"),
        pytest.param((EXACT, EXACT + np.float32(0.1)), "", id="no bias"),
        pytest.param((EXACT, relu(EXACT)), "", id="an activation too many"),
        pytest.param(with_some(0.05, 1.001), "", id="a few elements"),
        pytest.param(with_tail(1.004), "", id="a tail without its mask"),
        pytest.param(
            (INTEGERS, cut(INTEGERS, 7)), "looks like bfloat16", id="bfloat16, small whole numbers among others"
        ),
        pytest.param((EXACT, np.full_like(EXACT, np.nan)), "", id="nothing but NaN"),
    ],
)
def test_a_difference_looks_like_a_precision_or_like_none(pair: tuple[Array, Array], like: str):
    said = coarse_difference(pair[0].ravel(), pair[1].ravel(), "float32", "y")

    assert said.endswith(like) and bool(said) == bool(like)


@pytest.mark.parametrize("factor", [1.004, 0.0])
def test_a_tail_that_is_wrong_looks_like_no_type(factor: float):
    """The rest is exact, which rounding leaves few elements."""
    want, have = with_tail(factor)
    tail, rounded = (distribution(want.astype(np.float64), want, each, "float32") for each in (have, cut(want, 7)))

    assert lower_precision(rounded) == "looks like bfloat16" and "as bfloat16 would" in suspicion(rounded)
    assert lower_precision(tail) == ""
    assert suspicion(tail).startswith("looks like lower precision (in a part of its elements, the rest is exact): ")


def test_what_equals_a_reference_in_float16_is_exact():
    want, have = (each.astype(np.float16) for each in with_tail(0.9))

    assert "the rest is exact" in suspicion(distribution(EXACT.astype(np.float64), want, have, "float16"))


def test_how_far_off_is_said_of_the_whole_output():
    pair = np.ones(100, np.float32), np.tile(np.array([0.9996, 1.0004], np.float32), 50)

    assert coarse_difference(*pair, "float32", "y") == "; off by 0.04 % of y as a whole: looks like TF32 or float16"


def test_a_type_that_is_as_coarse_itself_looks_like_nothing():
    half = EXACT.astype(np.float16).ravel()

    assert coarse_difference(half, half * np.float16(1.001), "float16", "y") == ""


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"candidate": "launcher", "packages": ["triton"]}, ["tl.dot", "input_precision"]),
        ({"candidate": "model", "packages": ["torch"]}, ["cudnn.allow_tf32"]),
        ({"candidate": "model", "packages": ["torch", "triton"]}, ["tl.dot", "cudnn.allow_tf32"]),
        ({"candidate": "library"}, []),
        ({"candidate": "model", "packages": ["triton"], "device": "cpu"}, []),
    ],
)
def test_who_gets_tf32_without_asking_is_told_how_to_have_none(task, words):
    said = tf32_default({"device": "cuda", **task}, "off by 0.077 % of c as a whole: looks like TF32 or float16")

    assert bool(said) == bool(words) and all(word in said for word in words)
    assert not tf32_default({"device": "cuda", **task}, "c[0] is 1, expected 2")


@pytest.mark.parametrize("differ", ["", "weights differ"])
def test_a_wrong_answer_in_tf32_says_how_to_have_none_unless_the_weights_explain_it(differ):
    one = rounds.Rounds.__new__(rounds.Rounds)
    one.number, one.forgives, one.differ, one.task = 1, None, differ, {"device": "cuda", "packages": ["triton"]}
    one._without_ties = lambda buffers, check: check
    one._wrong = lambda *given, **named: verdicts.incorrect("looks like TF32 or float16")
    buffers = SimpleNamespace(sets=1, trespass=lambda: "", have_changed=lambda: False)

    with pytest.raises(verdicts.Judged) as told:
        one.judge(buffers, {}, device.RoundCheck(np.ones((1, 1)), 1.0, 1.0), 0.0)
    assert told.value.reason.endswith("; weights differ" if differ else '"ieee" or "tf32x3"')
