"""Kinds of tensors, problems and endings on a real GPU, through the whole laboratory."""

import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.errors import ProblemRefused
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides, TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import judge_job
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.laboratory import laboratory
from tests.real.test_judge_cuda import missing
from tests.real.test_python_cuda import INLINE, MODEL, SOFTMAX, TRITON

WHY = missing() or ("" if importlib.util.find_spec("torch") else "no torch here")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY or "-")]
EAGER = TimingOptions(baseline="eager")
CORRECTNESS = TimingOptions(tier="correctness")


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        yield lab


async def softmax(lab: Lab, text: str, language: Any, timing: TimingOptions = EAGER) -> Evaluation:
    info = await lab.evaluation.registry.import_file(ProblemSource("p.py", SOFTMAX, wish=ImportOverrides(atol=1e-7)))
    return await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, language, "k.py"), device="cuda", timing=timing
    )


async def own(lab: Lab, problem: dict[str, Any], text: str, language: str = "cuda", **timing: Any) -> Evaluation:
    tensors = {side: [TensorSpec(**t) for t in problem[side]] for side in ("inputs", "outputs")}
    info = await lab.evaluation.registry.register(**{"rtol": 1e-5, "atol": 1e-6, **problem, **tensors})
    name = "k.cu" if language == "cuda" else "k.py"
    how = TimingOptions(**{"baseline": "eager", **timing})
    return await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, language, name), device="cuda", timing=how
    )  # type: ignore[arg-type]


def vectors(*names: str, dtype: str = "float32") -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype, "shape": ["n"]} for name in names]


async def test_an_extension_is_built_once(lab: Lab):
    if not shutil.which("ninja"):
        pytest.skip("no ninja here")
    first, again = [await softmax(lab, INLINE, "python") for _ in range(2)]

    assert (first.verdict, again.verdict) == ("correct", "correct"), first.summary() + again.summary()
    assert "built in" in first.evidence["extensions"], first.evidence["extensions"]
    assert "as built before" in again.evidence["extensions"], again.evidence["extensions"]


async def test_torch_compile_stands_beside_eager(lab: Lab):
    found = await softmax(lab, TRITON, "triton", TimingOptions(baseline="compiled"))

    assert found.verdict == "correct" and found.compiled_speedup, found.summary()
    assert found.shapes[0].compiled and found.shapes[0].compiled.median_us > 1


REFERENCE = "import torch\ndef softmax(x):\n    return torch.softmax(x, -1)\n"
ROWS = {"dtype": "float32", "shape": ["rows", "cols"]}
FORBIDDEN = {
    "name": "softmax without libraries",
    "reference": REFERENCE,
    "inputs": [{"name": "x", **ROWS}],
    "outputs": [{"name": "y", **ROWS}],
    "shapes": [{"rows": 512, "cols": 4096}],
    "fixed_shapes": True,
    "libraries": "forbidden",
}
OWN_LAUNCH = TRITON.replace(
    "def launch(x, y):\n    softmax[(4096,)]", "def launch(x, y, rows, cols):\n    softmax[(rows,)]"
)
FALLBACK = "import torch\ndef launch(x, y, rows, cols):\n    y.copy_(torch.softmax(x, -1))\n"
DROPPED = OWN_LAUNCH.replace("(x, y, 4096, BLOCK=4096)", "(x.clone(), torch.empty_like(x), 4096, BLOCK=4096)") + (
    "    y.copy_(torch.softmax(x, -1))\n"
)


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (OWN_LAUNCH, "correct", "rests on its own kernels"),
        (FALLBACK, "incorrect", "fell back to the library"),
        (DROPPED, "incorrect", "fell back to the library"),
    ],
)
async def test_a_fall_back_to_the_library_is_found_by_ghost_replay(lab: Lab, text, verdict, words):
    found = await own(lab, FORBIDDEN, text, "triton", tier="correctness")

    assert found.verdict == verdict, found.summary()
    assert words in found.summary() + str(found.evidence), found.summary()


TANH = {
    "name": "tanh",
    "reference": "import torch\ndef f(x):\n    return torch.tanh(x)\n",
    "inputs": vectors("x"),
    "outputs": vectors("y"),
    "shapes": [{"n": 100_000}],
}
CUDA = """
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp8.h>
__global__ void kernel(PARAMETERS, int64_t n) {
    int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    BODY
}
extern "C" int launch(PARAMETERS, int64_t n, cudaStream_t stream) {
    BEFORE
    kernel<<<(n + 255) / 256, 256, 0, stream>>>(ARGUMENTS, n);
    return cudaGetLastError();
}
"""


def cuda(parameters: str, body: str, before: str = "") -> str:
    arguments = ", ".join(p.split()[-1].lstrip("*") for p in parameters.split(","))
    filled = CUDA.replace("PARAMETERS", parameters).replace("ARGUMENTS", arguments)
    return filled.replace("BODY", body).replace("BEFORE", before)


UNARY = "const float *x, float *y"
HONEST = cuda(UNARY, "y[i] = tanhf(x[i]);")
BAD = {
    "does not compile": (cuda(UNARY, "y[i] = nothing;"), "compile_failed", ""),
    "misnamed launcher": (HONEST.replace(" launch(", " lunch("), "incorrect", "no symbol launch"),
    "one parameter too many": (cuda("const float *x, const float *w, float *y", "y[i] = w[i] + x[i];"), "incorrect",
                               "launch is defined with 5 parameters and called with 4: "),
    "illegal address": (cuda(UNARY, "if (i == 77) *(volatile float *)1024 = 1; y[i] = 0;"), "incorrect", "illegal"),
    "trap": (cuda(UNARY, "if (i == 77) __trap();"), "incorrect", ""),
    "endless kernel": (cuda(UNARY, "while (*(volatile const float *)x < 1e30f); y[i] = 0;"), "incorrect", "within"),
    "endless host": (cuda(UNARY, "y[i] = 0;", "for (;;);"), "incorrect", "within"),
    "exits": (cuda(UNARY, "y[i] = 0;", "_exit(0);").replace("#include", "#include <unistd.h>\n#include", 1),
              "incorrect", "exited with status 0"),
    "too many threads": (HONEST.replace(", 256, 0, stream", ", 4096, 0, stream"), "incorrect", "launch error"),
    "takes all memory": (cuda(UNARY, "y[i] = 0;", "void *p; for (;;) { cudaError_t e = cudaMalloc(&p, 1ull << 33); if (e) return e; }"),
                         "incorrect", "out of memory: cudaMalloc asked for 8.59 GB (8589934592 bytes), more than the"),
    "keeps all memory": (cuda(UNARY, "y[i] = tanhf(x[i]);",
                              "static size_t size = 1ull << 33; for (void *p; size >> 20;) if (cudaMalloc(&p, size)) "
                              "{ cudaGetLastError(); size /= 2; }"),
                         "incorrect", "out of memory: it kept"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_an_honest_candidate_is_correct_right_after_a_bad_one(lab: Lab, name, monkeypatch):
    monkeypatch.setattr(judge_job, "ROUND_TIMEOUT_S", 4.0)
    source, verdict, reason = BAD[name]
    bad = await own(lab, TANH, source)

    assert (bad.verdict or bad.status) == verdict, bad.summary()
    assert reason.lower() in bad.reason.lower(), bad.reason
    good = await own(lab, TANH, HONEST)
    assert good.verdict == "correct", good.summary()


UNJUDGED = {
    "reference fails": (
        {"reference": TANH["reference"].replace("    return", "    if CALLS.append(1) or len(CALLS) > 60: raise "
                                                "RuntimeError('the table is full')\n    return") + "CALLS = []\n"},
        "RuntimeError: the table is full", "register it again"),
    "reference takes all memory": (
        {"reference": TANH["reference"].replace("    return", "    if CALLS.append(1) or len(CALLS) > 60: "
                                                "torch.empty(1 << 45, device=x.device)\n    return") + "CALLS = []\n"},
        "out of memory", "register it again"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNJUDGED)
async def test_what_cannot_be_judged_says_why_and_leaves_nothing_behind(lab: Lab, name):
    more, reason, advice = UNJUDGED[name]
    found = await own(lab, {**TANH, "name": name, **more}, HONEST)

    assert (found.status, found.verdict) == ("refused", None), found.summary()
    assert reason in found.reason and advice in (found.note or ""), found.summary()
    good = await own(lab, TANH, HONEST)
    assert good.verdict == "correct", good.summary()


async def test_a_problem_too_large_for_the_gpu_is_refused_with_both_sizes(lab: Lab):
    huge = SOFTMAX.replace("4096, 4096", "4096, 40_000_000")
    assert huge != SOFTMAX
    with pytest.raises(ProblemRefused, match=r"too large: its tensors take 1310\.7 GB, on cuda at most [0-9.]+ GB"):
        await lab.evaluation.registry.import_file(ProblemSource("p.py", huge))
    good = await own(lab, TANH, HONEST)
    assert good.verdict == "correct", good.summary()


LARGEST = {
    "name": "largest",
    "reference": "import torch\ndef f(x):\n    return x.argmax(dim=1)\n",
    "inputs": [{"name": "x", "dtype": "float16", "shape": ["rows", "cols"]}],
    "outputs": [{"name": "at", "dtype": "int64", "shape": ["rows"]}],
    "shapes": [{"rows": 20_000, "cols": 64}],
}
"""Of 64 normal numbers with eleven bits the largest has an equal in about one row of 300."""
LAST_OF_EQUALS = """
#include <cstdint>
#include <cuda_fp16.h>
__global__ void kernel(const __half *x, int64_t *at, int64_t rows, int64_t cols) {
    int64_t r = blockIdx.x * 256ll + threadIdx.x, best = 0;
    if (r >= rows) return;
    for (int64_t c = 1; c < cols - LESS; c++)
        if (__half2float(x[r * cols + c]) >= __half2float(x[r * cols + best])) best = c;
    at[r] = best;
}
extern "C" int launch(const __half *x, int64_t *at, int64_t rows, int64_t cols, cudaStream_t stream) {
    kernel<<<(rows + 255) / 256, 256, 0, stream>>>(x, at, rows, cols);
    return cudaGetLastError();
}
"""


@pytest.mark.parametrize(("less", "verdict"), [("0", "correct"), ("(cols == 64 && r % 100 == 7)", "incorrect")])
async def test_another_index_among_equals_is_as_right_in_timed_rounds(lab: Lab, less, verdict):
    found = await own(lab, LARGEST, LAST_OF_EQUALS.replace("LESS", less))

    assert found.verdict == verdict, found.summary()
    if verdict == "correct":
        assert any("as right" in note for note in found.shapes[0].notes), found.shapes[0].notes


async def test_an_illegal_address_is_told_with_kernel_and_line(lab: Lab):
    if not shutil.which("compute-sanitizer"):
        pytest.skip("no compute-sanitizer here")
    found = await own(lab, TANH, BAD["illegal address"][0])
    line = next(n for n, t in enumerate(BAD["illegal address"][0].splitlines(), 1) if "1024" in t)

    assert f":{line}: " in found.evidence["memcheck"] and "kernel" in found.evidence["memcheck"], found.evidence[
        "memcheck"
    ]


BOOLS = {
    "name": "masked",
    "reference": "import torch\ndef f(x, mask):\n    return torch.where(~mask, x, 0), x > 0\n",
    "inputs": [*vectors("x"), *vectors("mask", dtype="bool")],
    "outputs": [*vectors("kept"), *vectors("sign", dtype="bool")],
    "shapes": [{"n": 1000}],
}
PACKED = {
    "name": "packed",
    "reference": """
import torch
FOUR = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
def f(a, b):
    codes = b.view(torch.uint8).long()
    four = FOUR.to(a.device)
    return a.float() * (four[codes & 15] + four[codes >> 4])
""",
    "inputs": [*vectors("a", dtype="float8_e4m3fn"), *vectors("b", dtype="float4_e2m1fn_x2")],
    "outputs": vectors("product"),
    "shapes": [{"n": 1000}],
}
GRADIENTS = {
    "name": "gradients",
    "reference": "import torch\ndef f(x, w):\n    return torch.tanh(x) * w\n",
    "inputs": vectors("x", "w"),
    "outputs": vectors("y"),
    "shapes": [{"n": 5000}],
    "backward": True,
}
KINDS = {
    "bools": (
        BOOLS,
        "const float *x, const bool *mask, float *kept, bool *sign",
        "kept[i] = mask[i] ? 0 : x[i]; sign[i] = x[i] > 0;",
        ("x[i] > 0;", "x[i] <= 0;"),
    ),
    "eight and four bits": (
        PACKED,
        "const __nv_fp8_e4m3 *a, const uint8_t *b, float *product",
        "const float four[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6}; int l = b[i] & 15, h = b[i] >> 4;"
        "float low = l & 8 ? -four[l & 7] : four[l & 7], high = h & 8 ? -four[h & 7] : four[h & 7];"
        "product[i] = float(a[i]) * (low + high);",
        ("b[i] >> 4", "b[i] >> 5"),
    ),
    "gradients": (
        GRADIENTS,
        "const float *x, const float *w, const float *d_y, float *y, float *grad_x, float *grad_w",
        "float t = tanhf(x[i]); y[i] = t * w[i]; grad_w[i] = t * d_y[i]; grad_x[i] = d_y[i] * w[i] * (1 - t * t);",
        ("(1 - t * t)", "(1 - t)"),
    ),
}


@pytest.mark.parametrize("name", KINDS)
async def test_tensors_of_all_kinds_are_judged_on_the_gpu(lab: Lab, name):
    problem, parameters, body, wrong = KINDS[name]

    right = await own(lab, problem, cuda(parameters, body))
    assert right.verdict == "correct", right.summary()
    planted = await own(lab, problem, cuda(parameters, body.replace(*wrong)), tier="correctness")
    assert planted.verdict == "incorrect", planted.summary()


async def test_gradients_of_a_model_are_judged_on_the_gpu(lab: Lab):
    text = MODEL.replace("self, x", "self, x, w")
    right = await own(lab, GRADIENTS, text.format(body="return torch.tanh(x) * w"), "python", tier="correctness")
    wrong = await own(
        lab, GRADIENTS, text.format(body="return torch.tanh(x).detach() * w"), "python", tier="correctness"
    )

    assert (right.verdict, wrong.verdict) == ("correct", "incorrect"), right.summary() + wrong.summary()
