"""A candidate that keeps the GPU's memory is told so; one that does not is never blamed. The driver is the fake."""

import secrets

import pytest

from tests.judge.harness import EXAMPLES
from tests.judge.test_candidates_cuda_fake import SHAPES, court, with_stream

__all__ = ["court"]

GPU, SMALL = 1 << 30, 1 << 29
KEEPS = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void keep(void) {
    static int done;
    if (done++) return;
    FILE *file = fopen(getenv("CUDA_FAKE_HELD"), "w");
    fprintf(file, "%d %llu", getpid(), BYTESULL);
    fclose(file);
}
"""
AT_LOADING = "static void __attribute__((constructor)) begin(void) { keep(); }"


def keeper(left: int, name: str = "naive.c", *, at_once: bool = True) -> str:
    """Return a candidate that leaves so many bytes, from its loading on or from its first call."""
    start = KEEPS.replace("BYTES", str(GPU - left))
    if at_once:
        return start + AT_LOADING + with_stream(name)
    body = with_stream(name)
    assert "void *stream) {" in body
    return start + body.replace("void *stream) {", "void *stream) { keep();")


def of_the_gpu(share: float, size: int = GPU) -> dict[str, int]:
    """Return a shape of which one call's buffers take that share: four tensors."""
    return {"rows": int(share * size / 4 / 4 / 4096), "cols": 4096}


@pytest.fixture
def counted(court, tmp_path, monkeypatch):
    """Return the court, on a GPU whose memory is full when it is full."""
    monkeypatch.setenv("CUDA_FAKE_COUNT", secrets.token_hex(8))
    monkeypatch.setenv("CUDA_FAKE_HELD", str(tmp_path / "held"))
    return lambda source, **task: court(source, **{"fixed_shapes": True, "distributions": "declared", **task}).verdict


@pytest.mark.parametrize(
    ("tier", "shapes"),
    [
        ("performance", [of_the_gpu(0.55, SMALL)]),
        ("correctness", [*SHAPES[:1], *(of_the_gpu(share, SMALL) for share in (0.6, 0.8))]),
    ],
)
def test_an_honest_candidate_may_have_shapes_that_nearly_fill_the_gpu(counted, monkeypatch, tier, shapes):
    monkeypatch.setenv("CUDA_FAKE_BYTES", str(SMALL))
    got = counted(with_stream("naive.c"), shapes=shapes, tier=tier, max_rounds=1)

    assert got.get("verdict") == "correct", got


@pytest.mark.parametrize(("at_once", "left"), [(True, 70_000_000), (False, 70_000_000), (False, 0), (True, 1_000_000)])
def test_who_keeps_memory_until_the_judge_has_none_is_incorrect(counted, at_once, left):
    got = counted(keeper(left, at_once=at_once), shapes=[*SHAPES[:1], of_the_gpu(0.125)])

    assert got.get("verdict") == "incorrect", got
    assert "out of memory: it kept 1" in got["reason"] or "out of memory: it kept 0.9" in got["reason"]
    assert "too large for this GPU" in got["reason"] or "CUDA_ERROR_OUT_OF_MEMORY" in got["reason"]


def test_the_shapes_that_were_judged_before_stay_and_the_reason_names_the_one_that_did_not_fit(counted):
    shapes = [*SHAPES[:1], of_the_gpu(0.125)]
    got = counted(keeper(100_000_000), shapes=shapes, round_ms=0.1)

    assert [s["dims"] for s in got["shapes"]] == shapes[:1]
    assert got["reason"].startswith("rows=2048, cols=4096: out of memory: it kept 0.9")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_reference_without_memory_is_the_fault_of_who_keeps_it_and_else_of_the_problem(counted, tmp_path, keeps):
    reference = tmp_path / "reference.py"
    asks = "    if x.shape[0] > 100:\n        raise MemoryError('CUDA out of memory. Tried to allocate 2 GiB')\n"
    text = (EXAMPLES / "reference.py").read_text()
    head, _, body = text.rpartition('"""\n')
    reference.write_text(f'{head}"""\n{asks}{body}')
    source = keeper(200_000_000) if keeps else with_stream("naive.c")
    got = counted(source, shapes=[*SHAPES[:1], {"rows": 512, "cols": 64}], reference=reference)

    assert got.get("verdict") == ("incorrect" if keeps else None), got
    assert "Tried to allocate 2 GiB" in (got["reason"] if keeps else got["refused"])


def test_a_problem_that_is_too_large_without_the_candidate_is_not_its_fault(counted):
    got = counted(with_stream("naive.c"), shapes=[*SHAPES[:1], of_the_gpu(1.1)])

    assert got["refused"].startswith("the problem is too large for this GPU: 1 calls at this shape take 1.18 GB")


BATCHES = """
#include <stdint.h>
#include <stddef.h>
#include <math.h>

static const float *seen;
static float *answers;
static int others;

static void one(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

int launch(const float *x, float *y, int64_t rows, int64_t cols, void *stream) {
    static ptrdiff_t in, out;
    if (rows < 1000) { one(x, y, rows, cols); return 0; }
    if (seen && x > seen && !others) { in = x - seen; out = y - answers; others = 1; one(x, y, rows, cols); return 0; }
    if (others && x == seen + in) return 0; /* it was answered with the call before */
    seen = x; answers = y;
    one(x, y, rows, cols);
    if (others) one(x + in, y + out, rows, cols);
    return 0;
}
"""


def test_two_calls_that_are_answered_at_once_are_seen_too(counted):
    got = counted(BATCHES, shapes=[of_the_gpu(0.14)], round_ms=500, max_rounds=3, budget_s=20.0)  # two calls, not one

    assert got.get("verdict") == "cheat", got
    assert "worked on a call before it was called: the judge made only 1 of 2 calls" in got["reason"]
