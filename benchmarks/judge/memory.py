"""Measure the GPU memory that judging takes: `python benchmarks/judge/memory.py`.

A problem with large tensors is judged while NVML is asked, every 5 ms, how much of the GPU is in use. Beside the peak
stands B (inputs + outputs) + outputs + 25 %, B being the calls of a timed round.
"""

import argparse
import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
SOURCE = """
#include <cstdint>
#include <cuda_runtime.h>
__global__ void kernel(const float *x, float *y, int64_t count) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) BODY
}
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
    kernel<<<4096, 256, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
"""
MAP = ("tanh", "torch.tanh(x)", [], "y[i] = tanhf(x[i]);")
SUM = ("sums of 64", "x.sum(1)", [64], "{ float s = 0; for (int k = 0; k < 64; k++) s += x[i * 64 + k]; y[i] = s; }")
CASES = [(MAP, 1 << 26), (MAP, 1 << 22), (SUM, 1 << 21), (SUM, 1 << 16)]


class Watch(threading.Thread):
    """Asks NVML for the memory in use until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.before = self.peak = self.used()
        self.running = True

    def used(self) -> int:
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.gpu).used)

    def run(self) -> None:
        while self.running:
            self.peak = max(self.peak, self.used())
            time.sleep(0.005)


async def measured(lab: Any, case: tuple[str, str, list[int], str], n: int) -> str:
    """Judge a right kernel; return a row of the table."""
    from gpu_mcp_server.models.evaluation import TimingOptions
    from gpu_mcp_server.models.problem import TensorSpec
    from gpu_mcp_server.services.builds.candidate_source import CandidateSource

    name, body, more, kernel = case
    info = await lab.evaluation.registry.register(
        name=name,
        reference=f"import torch\ndef f(x):\n    return {body}\n",
        inputs=[TensorSpec(name="x", dtype="float32", shape=["n", *more])],
        outputs=[TensorSpec(name="y", dtype="float32", shape=["n"])],
        shapes=[{"n": n}],
        fixed_shapes=True,
        rtol=1e-4,
        atol=1e-4,
    )
    watch = Watch()
    watch.start()
    source, timing = CandidateSource(SOURCE.replace("BODY", kernel), "cuda", "k.cu"), TimingOptions(baseline="eager")
    found = await lab.evaluation.evaluator.evaluate(info.problem_id, source, device="cuda", timing=timing)
    watch.running = False
    watch.join()
    timed = found.shapes[0].candidate if found.shapes else None
    sets = timed.calls_per_round if timed else 0
    given, made = 4 * n * (more[0] if more else 1), 4 * n
    rule, peak = 1.25 * (sets * (given + made) + made), watch.peak - watch.before
    cells = [name, f"{given / 1e9:.3g}", f"{made / 1e9:.3g}", str(sets), f"{peak / 1e9:.3g}", f"{rule / 1e9:.3g}"]
    return "| " + " | ".join([*cells, f"{peak / rule:.2f}", f"{found.verdict} {found.reason[:80]}"]) + " |"


async def main() -> None:
    """Measure and print a table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    from tests.laboratory import laboratory

    print("| problem | inputs, GB | outputs, GB | B | peak, GB | B (in + out) + out + 25 %, GB | ratio | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        for case, n in CASES:
            print(await measured(lab, case, n), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
