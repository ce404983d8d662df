"""The judge's words on time on a real GPU; bad candidates leave nothing behind."""

import pytest

from tests.judge.harness import EXAMPLES
from tests.real.test_judge_cuda import judged, missing, written

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
SHAPE = [{"rows": 1024, "cols": 1024}]
BAD = [
    ("softmax<<<rows, 4096>>>(x, y, cols); return cudaGetLastError();", "launch error"),
    ("softmax<<<rows, 32>>>(x, y, cols); put<<<1, 1>>>((float *)nullptr); return 0;", "ILLEGAL_ADDRESS"),
    ("wait<<<1, 1>>>(1ll << 60); return 0;", "within 3 s and was killed; the GPU answered afterwards"),
    ("for (;;); return 0;", "within 3 s and was killed; the GPU answered afterwards"),
    ("void *p; return cudaMalloc(&p, 1ull << 45);", "cudaErrorMemoryAllocation, out of memory"),
    ("*(volatile int *)0 = 1; return 0;", "crashed with SIGSEGV"),
]


@pytest.mark.parametrize(("body", "reason"), BAD)
def test_a_bad_candidate_is_named_and_the_next_one_is_judged(tmp_path, body, reason):
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    bad = judged(written(body, tmp_path / "bad"), tmp_path / "bad", shapes=SHAPE, round_timeout_s=3)
    assert bad.exit_code == 0, bad.stderr
    assert bad.verdict["verdict"] == "incorrect"
    assert reason in bad.verdict["reason"]
    good = judged(EXAMPLES / "vectorized.cu", tmp_path / "good", shapes=SHAPE)
    assert good.verdict["verdict"] == "correct", good.verdict["reason"]


def test_a_shape_says_how_it_was_timed(tmp_path):
    more = {"half_width": 0.005, "max_rounds": 200, "budget_s": 5.0, "overhead_s": 60.0}
    outcome = judged(EXAMPLES / "vectorized.cu", tmp_path, shapes=SHAPE, cache="both", **more)
    assert outcome.exit_code == 0, outcome.stderr
    shape = outcome.verdict["shapes"][0]

    assert shape["half_width"] < 0.005 or shape["stopped_by"] in ("rounds", "time")
    assert "SM " in shape["conditions"] and "MHz" in shape["conditions"]
    assert shape["cache"].startswith("cold: ")
    assert 50 < outcome.verdict["evidence"]["candidate_pass_cost_us"] < 5000
    assert "warm" in shape or any("warm" in note for note in shape["notes"])
    assert outcome.verdict["evidence"]["candidate_calls_by"] == "compiled C"


def test_a_time_below_what_the_device_can_do_is_void(tmp_path):
    """With peaks that are a hundred times too low, the honest candidate is faster than its device."""
    needs = {"least_bytes": 1 << 22, "touched_bytes": 1 << 23, "flops": None}
    label = judged(EXAMPLES / "vectorized.cu", tmp_path, shapes=SHAPE).verdict["device"]
    low = {"spec": "a slow one", "dram_bytes_per_s": 4.8e10, "cache_bytes": 50 << 20, "flop_per_s": 1e15, "roof_type": None,
           "roof_flop_per_s": None, "shapes": [needs]}  # fmt: skip
    (tmp_path / "again").mkdir()
    got = judged(EXAMPLES / "vectorized.cu", tmp_path / "again", shapes=SHAPE, floors={label: low}).verdict

    assert got["verdict"] == "cheat"
    assert "faster than the device can" in got["reason"]
