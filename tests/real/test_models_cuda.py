"""Models with large weights on a real GPU: how their weights get to candidates, and a GPU that is busy for a known time."""

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.judge_package import packages
from tests.laboratory import laboratory
from tests.real.test_judge_cuda import missing

WHY = missing() or ("" if importlib.util.find_spec("torch") else "no torch here")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY or "-")]
PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.gemm = nn.Linear(wide, wide)
        self.scale = nn.Parameter(torch.randn(wide))
    def forward(self, x):
        return torch.relu(self.gemm(x) * self.scale)

def get_inputs():
    return [torch.rand(64, 2048)]

def get_init_inputs():
    return [2048]
"""
SAME = PROBLEM.split("def get_inputs")[0].replace("class Model", "class ModelNew")
NAMED = SAME.replace("self.gemm", "self.linear")
OTHER = SAME.replace("nn.Linear(wide, wide)", "nn.Linear(wide, wide, bias=False)")
LAUNCHER = """
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void row(const float *x, const float *scale, const float *weight, const float *bias, float *y, int wide) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    const float *a = x + (int64_t)blockIdx.y * wide, *w = weight + (int64_t)n * wide;
    double sum = 0;
    for (int k = 0; k < wide; k++) sum += (double)a[k] * w[k];
    float value = ((float)sum + bias[n]) * scale[n];
    y[(int64_t)blockIdx.y * wide + n] = value > 0 ? value : 0;
}

PARAMETERS {
    row<<<dim3(2048 / 256, 64), 256, 0, (cudaStream_t)stream>>>(x, scale, gemm_weight, gemm_bias, y, 2048);
    return cudaGetLastError();
}
"""


OWN_KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def shifted(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2 + 1, mask=at < n)

class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        shifted[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y

def get_inputs():
    return [torch.randn(512, 1000)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        pytest.param(SAME, "correct", id="the same"),
        pytest.param(NAMED, "correct", id="other names"),
        pytest.param(OTHER, "incorrect", id="without the bias"),
    ],
)
async def test_a_model_has_its_weights_by_the_common_seed(lab: Lab, text, verdict):
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", PROBLEM))
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id,
        CandidateSource(text, "python", "k.py"),
        device="cuda",
        timing=TimingOptions(tier="correctness"),
    )

    assert found.verdict == verdict, found.summary()


async def test_a_launcher_is_given_the_models_weights(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", PROBLEM))
    names = [tensor.name for tensor in (await lab.store.problems.get(info.problem_id)).inputs]
    parameters = ", ".join([*(f"const float *{name}" for name in names), "float *y", "void *stream"])
    text = LAUNCHER.replace("PARAMETERS", f'extern "C" int launch({parameters})')
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, "cuda", "k.cu"), device="cuda", timing=TimingOptions(tier="correctness")
    )

    assert found.verdict == "correct", found.summary()


async def test_a_reference_may_launch_a_triton_kernel_of_its_own(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("own_kernel.py", OWN_KERNEL))
    text = OWN_KERNEL.split("def get_inputs")[0].replace("class Model", "class ModelNew")
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, "python", "k.py"), device="cuda"
    )

    assert found.verdict == "correct" and found.speedup, found.summary()


async def test_a_problem_may_rank_by_the_time_of_a_call_in_a_loop(lab: Lab):
    source = ProblemSource("linear.py", PROBLEM.replace("2048", "128"), wish=ImportOverrides(basis="call"))
    info = await lab.evaluation.registry.import_file(source)
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(SAME, "python", "k.py"), device="cuda"
    )
    (shape,) = found.shapes

    assert found.verdict == "correct" and shape.basis == "call" and found.speedup, found.summary()
    # three kernels of a few microseconds: launching them takes longer
    assert shape.on_gpu and shape.candidate and shape.on_gpu.candidate.median_us < shape.candidate.median_us
    assert "in a loop: launch-bound" in found.summary().partition("\n")[0], found.summary()
    assert found.trust in ("confirmed", "provisional"), found.summary()


async def test_a_problem_may_rank_by_events_around_each_call(lab: Lab):
    source = ProblemSource("linear.py", PROBLEM.replace("2048", "128"), wish=ImportOverrides(basis="kernelbench"))
    info = await lab.evaluation.registry.import_file(source)
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(SAME, "python", "k.py"), device="cuda"
    )
    (shape,) = found.shapes

    assert found.verdict == "correct" and shape.basis == "kernelbench" and found.speedup, found.summary()
    assert shape.speedup_low and shape.speedup_low < 1.15, "it does what the reference does"
    assert shape.on_gpu and shape.candidate and shape.on_gpu.candidate.median_us < shape.candidate.median_us
    assert "times by events" in found.summary().partition("\n")[0], found.summary()
    assert found.trust in ("confirmed", "provisional"), found.summary()


TANH = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x)

def get_inputs():
    return [torch.randn(ROWS, 4096)]

def get_init_inputs():
    return []
"""
KEPT = """
import torch

class ModelNew(torch.nn.Module):
    y = None

    def forward(self, x):
        if self.y is None:
            self.y = torch.empty_like(x)
        return torch.tanh(x, out=self.y)
"""
GRAPH = """
import torch

class ModelNew(torch.nn.Module):
    graph = None

    def forward(self, x):
        if self.graph is None:
            self.x, self.y = x.clone(), torch.empty_like(x)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                torch.tanh(self.x, out=self.y)
        self.x.copy_(x)
        self.graph.replay()
        return self.y
"""
ALLOCATING = GRAPH.replace("torch.tanh(self.x, out=self.y)", "self.y = torch.tanh(self.x)")
RECAPTURED = GRAPH.replace("graph = None\n", "graphs = 0\n").replace(
    "if self.graph is None:\n", "if self.graphs < 2:\n            self.graphs += 1\n"
)
"""It captures in its first call, and in the second once more."""
FAILING = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.tanh(x).sum().item()
        except RuntimeError:
            return torch.tanh(x)
"""
"""Each call tries to capture what cannot be captured, and goes on without a graph."""
FAILING_ONCE = FAILING.replace("    def forward", "    tried = False\n\n    def forward").replace(
    "        try:\n",
    "        if self.tried:\n            return torch.tanh(x)\n        self.tried = True\n        try:\n",
)
COMPILED = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tanh = torch.compile(torch.tanh, mode="reduce-overhead")
        WARMED

    def forward(self, x):
        return self.tanh(x)
"""
WARMED = COMPILED.replace("WARMED", "[self.tanh(torch.randn(1024, 4096, device='cuda')) for _ in range(3)]")
FRESH = TANH.split("def get_inputs")[0].replace("class Model", "class ModelNew")


@pytest.mark.parametrize(
    ("text", "rows", "said"),
    [
        pytest.param(KEPT, 1024, "outputs that the model keeps get other memory in each call: no copy", id="kept"),
        pytest.param(GRAPH, 1024, "within the clock: an output lies in memory from before the call", id="graph"),
        pytest.param(
            ALLOCATING, 1024, "within the clock: an output lies in memory from before the call", id="allocating"
        ),
        pytest.param(RECAPTURED, 1024, "within the clock: two calls returned the same memory", id="twice"),
        pytest.param(FAILING, 1024, "the outputs lie in the judge's memory: no copy in the clock", id="no graph"),
        pytest.param(FAILING_ONCE, 1024, "the outputs lie in the judge's memory: no copy in the clock", id="one try"),
        pytest.param(COMPILED.replace("WARMED", ""), 1024, "within the clock: torch.compile's CUDA", id="compiled"),
        pytest.param(WARMED, 1024, "within the clock: torch.compile's CUDA graphs answer in", id="compiled and warm"),
        pytest.param(
            KEPT, 60_000, "outputs that the model keeps get other memory in each call: no copy", id="1 GB kept"
        ),
        pytest.param(FRESH, 50_000, "the outputs lie in the judge's memory: no copy in the clock", id="800 MB"),
    ],
)
async def test_outputs_are_copied_only_where_a_model_cannot_be_given_other_memory(lab: Lab, text, rows, said):
    info = await lab.evaluation.registry.import_file(ProblemSource("tanh.py", TANH.replace("ROWS", str(rows))))
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, "python", "k.py"), device="cuda"
    )

    assert found.verdict == "correct" and found.speedup, found.summary()
    assert said in found.summary(), found.summary()
    assert ("a lower bound" in found.summary()) == ("within the clock" in said), found.summary()


BRANCHES = """
import torch

class ModelNew(torch.nn.Module):
    graph = None

    def forward(self, x):
        if self.graph is None:
            self.x, self.y, self.half = x.clone(), torch.empty_like(x), x.shape[0] // 2
            sides = [torch.cuda.Stream() for _ in range(3)]
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                main = torch.cuda.current_stream()
                for part, side in enumerate(sides):
                    side.wait_stream(main)
                    with torch.cuda.stream(side):
                        for _ in range(40):
                            torch.tanh(self.x.view(-1)[part::3], out=self.y.view(-1)[part::3])
                    main.wait_stream(side)
        self.x.copy_(x)
        self.graph.replay()
        return self.y
"""


LONG = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(KERNELS):
            x = torch.sin(x)
        return x

def get_inputs():
    return [torch.randn(256, 256)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("kernels", "basis", "why"), [(900, "device", ""), (2000, "call", "launch more than its queue holds")]
)
async def test_a_call_of_many_kernels_is_timed_behind_gates_where_the_queue_has_room(lab: Lab, kernels, basis, why):
    text = LONG.replace("KERNELS", str(kernels))
    info = await lab.evaluation.registry.import_file(ProblemSource("sines.py", text))
    candidate = CandidateSource(text.replace("class Model", "class ModelNew"), "python", "k.py")
    found = await lab.evaluation.evaluator.evaluate(info.problem_id, candidate, device="cuda")
    (shape,) = found.shapes

    assert found.verdict == "correct" and found.speedup, found.summary()
    assert shape.basis == basis, shape.notes
    assert why in shape.unconfirmable and bool(why) == found.trust.startswith("unconfirmable"), found.summary()


async def test_a_graph_of_several_branches_has_a_time(lab: Lab):
    # One of a GRU of six layers seemed busy to probes while it waited at its gate (H200).
    info = await lab.evaluation.registry.import_file(ProblemSource("tanh.py", TANH.replace("ROWS", "1024")))
    found = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(BRANCHES, "python", "k.py"), device="cuda"
    )

    assert found.verdict == "correct" and found.speedup, found.summary()


def test_a_gpu_is_busy_for_as_long_as_it_is_told():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import time; from gpu_mcp_judge.devices.cuda_driver import Driver; from gpu_mcp_judge.timing.gpu_context_switch import GpuTurns\n"
        "turns = GpuTurns(Driver()); turns.ping(); turns.spin(0.001); begin = time.perf_counter()\n"
        "said = [turns.spin(0.02) for _ in range(5)]; print(time.perf_counter() - begin, *said)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script, packages()], capture_output=True, text=True, check=True)
    took, *said = map(float, ran.stdout.split())
    assert said == [0.02] * 5
    assert 0.1 <= took < 0.2
