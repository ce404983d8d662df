"""The judge on a real GPU, on the CUDA examples. Also runs without pytest: `python -m tests.real.test_judge_cuda`."""

# ruff: noqa: T201
import ctypes
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.judge.harness import EXAMPLES, Outcome, build_cuda, judge

SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 4096, "cols": 4096}, {"rows": 333, "cols": 1025}]
EXPECTED = [
    ("naive.cu", "correct", ""),
    ("vectorized.cu", "correct", ""),
    ("wrong_tail.cu", "incorrect", "all in the last 104 of 1000 along cols"),
    ("cached_answer.cu", "cheat", "repeats an earlier answer"),
    ("late_answer.cu", "cheat", "finished after it said done"),
    ("no_answer.cu", "cheat", "returned without computing"),
]

HEAD = """
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>
__global__ void softmax(const float *x, float *y, int64_t cols) {
    const float *in = x + blockIdx.x * cols; float *out = y + blockIdx.x * cols; float top = in[0], sum = 0;
    for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
    for (int64_t c = 0; c < cols; c++) sum += expf(in[c] - top);
    for (int64_t c = threadIdx.x; c < cols; c += 32) out[c] = expf(in[c] - top) / sum;
}
__global__ void put(float *at) { *at = 1; }
__global__ void wait(long long ns) { long long t, s; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(s));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); } while (t - s < ns); }
extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
"""
MORE = [
    ("softmax<<<rows, 32>>>(x, y, cols); put<<<1, 1>>>((float *)x); return 0;", "incorrect", "ILLEGAL_ADDRESS"),
    ("softmax<<<rows, 32>>>(x, y, cols); put<<<1, 1>>>(y + rows * cols); return 0;", "cheat", "bytes behind output y"),
    ("softmax<<<rows, 32>>>(x, y, cols); put<<<1, 1>>>(y - 1); return 0;", "cheat", "bytes before output y"),
    ("return 5;", "incorrect", "the launcher returned 5 in call 1"),
    ("softmax<<<rows, 4096>>>(x, y, cols); return cudaGetLastError();", "incorrect", "the launcher returned "),
    ("softmax<<<rows - 1, 32>>>(x, y, cols); return 0;", "incorrect", "all in rows = 63 (the last)"),
    ('puts("{}"); softmax<<<rows, 32>>>(x, y, cols); return 0;', "correct", ""),
    (
        "static cudaStream_t side; if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);"
        "softmax<<<rows, 32, 0, side>>>(x, y, cols); return 0;",
        "incorrect",
        "was missing when the given stream had passed the call",
    ),
]


def missing() -> str:
    """Say what a GPU test needs and this machine lacks."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver here"
    if not shutil.which("nvcc"):
        return "no nvcc here"
    return ""


def reference() -> tuple[Path, str]:
    """Return torch's reference where torch is, otherwise NumPy's."""
    if importlib.util.find_spec("torch"):
        return EXAMPLES / "reference_torch.py", "torch"
    return EXAMPLES / "reference.py", "numpy"


def judged(source: Path, folder: Path, **task: object) -> Outcome:
    """Judge a CUDA candidate."""
    path, framework = reference()
    path, framework = task.pop("reference", path), task.pop("framework", framework)
    task = {"device": "cuda", "framework": framework, "shapes": SHAPES, **task}
    return judge(folder, path, build_cuda(source, folder), timeout_s=300, **task)


def written(body: str, folder: Path) -> Path:
    source = folder / "candidate.cu"
    source.write_text(HEAD + body + "}\n")
    return source


if "pytest" in sys.modules:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.timeout(400),
        pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    ]

    @pytest.mark.parametrize(("name", "verdict", "reason"), EXPECTED)
    def test_a_cuda_example_gets_its_verdict(tmp_path, name, verdict, reason):
        outcome = judged(EXAMPLES / name, tmp_path)
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()
        assert outcome.verdict["verdict"] == verdict, outcome.verdict["reason"]
        assert reason in outcome.verdict["reason"]

    @pytest.mark.parametrize(("body", "verdict", "reason"), MORE)
    def test_a_cuda_candidate_gets_its_verdict(tmp_path, body, verdict, reason):
        outcome = judged(written(body, tmp_path), tmp_path, shapes=SHAPES[:1])
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()
        assert outcome.verdict["verdict"] == verdict, outcome.verdict["reason"]
        assert reason in outcome.verdict["reason"]

    @pytest.mark.parametrize("framework", ["numpy", "torch"])
    def test_a_reference_on_either_side_serves_a_cuda_candidate(tmp_path, framework):
        if framework == "torch":
            pytest.importorskip("torch")
        path = EXAMPLES / ("reference.py" if framework == "numpy" else "reference_torch.py")
        outcome = judged(EXAMPLES / "vectorized.cu", tmp_path, framework=framework, reference=path, shapes=SHAPES[:1])
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()
        assert outcome.verdict["verdict"] == "correct", outcome.verdict["reason"]
        assert outcome.verdict["evidence"]["memory"] == "exported allocations, inputs read-only"

    def test_a_reference_is_registered_on_the_gpu(tmp_path):
        path, framework = reference()
        outcome = judge(tmp_path, path, device="cuda", framework=framework, shapes=SHAPES, timeout_s=300)
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()
        assert outcome.verdict["status"] == "ok", outcome.verdict["reason"]


def table() -> None:
    """Print the verdict of every example and of the further candidates, with times and evidence."""
    if missing():
        print("skipped:", missing())
        return
    path, framework = reference()
    cases = [(name, verdict, None) for name, verdict, _ in EXPECTED]
    cases += [(body, verdict, SHAPES[:1]) for body, verdict, _ in MORE]
    with tempfile.TemporaryDirectory() as top:
        registered = judge(folder(top), path, device="cuda", framework=framework, shapes=SHAPES, timeout_s=300)
        print("register:", registered.exit_code, registered.stderr, json.dumps(registered.verdict))
        for number, (what, verdict, shapes) in enumerate(cases):
            here = folder(top)
            source = EXAMPLES / what if what.endswith(".cu") else written(what, here)
            outcome = judged(source, here, **({"shapes": shapes} if shapes else {}))
            got = outcome.verdict.get("verdict")
            print("OK " if got == verdict else "BAD", what[:90], "->", got, outcome.verdict.get("reason", ""))
            if outcome.exit_code:
                print(outcome.stderr, (here / "noise.txt").read_text()[-3000:])
            for shape in outcome.verdict.get("shapes", []):
                shape.pop("samples", None)
                print("    ", json.dumps(shape))
            if not number:
                print("    ", json.dumps(outcome.verdict.get("evidence")))
            sys.stdout.flush()


def folder(top: str) -> Path:
    return Path(tempfile.mkdtemp(dir=top))


if __name__ == "__main__":
    table()
