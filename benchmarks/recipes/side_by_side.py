"""The same scripted optimization with our tools and with a plain shell and compiler: what reaches the model, and when.

    python benchmarks/recipes/side_by_side.py [--device cuda|nvcc] [--json PATH]

Seven candidates for a row-wise softmax in the order in which an agent would come to them, two of them not honest. With
our tools: one call registers the problem, one judges each candidate, one lists the best. With a shell: the test program
that an agent would write (random input, double precision on the host, best of 20 timed calls), then one command a
candidate that writes the file, compiles, tests. Characters are those of results as a client shows them: the structure
of a success, the words of an error; stdout and stderr of a command, cut at 30,000 as Claude Code cuts them. With nvcc,
for a machine without a GPU, the CUDA candidates are compiled alone, for an H200, with registers and spills told.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

ROOT = Path(__file__).parents[2]
SOFTMAX = ROOT / "examples" / "softmax"
SHELL_CHARACTERS = 30_000
"""Source: BASH_MAX_OUTPUT_LENGTH, Claude Code's documentation of its settings."""
SHAPES = [{"rows": 32, "cols": 1000}, {"rows": 1024, "cols": 4096}]
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
ARCH = "sm_90a"
ORDER = ("typo", "wrong_tail", "naive", "template", "vectorized", "cached_answer", "late_answer")
TEMPLATE = """#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        std::list<float> sorted(x + r * cols, x + (r + 1) * cols);
        std::sort(sorted.begin(), sorted.end());
        float top = sorted.back(), sum = 0;
        for (int64_t c = 0; c < cols; c++) sum += y[r * cols + c] = std::exp(x[r * cols + c] - top);
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] /= sum;
    }
    return 0;
}
"""
TEST = """#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>
#ifdef __CUDACC__
#include <cuda_runtime.h>
extern "C" int launch(const float *, float *, int64_t, int64_t, cudaStream_t);
static int call(const float *x, float *y, int64_t r, int64_t c) {
    int said = launch(x, y, r, c, 0);
    cudaDeviceSynchronize();
    return said;
}
static float *memory(size_t n) { float *p; cudaMalloc(&p, n * 4); return p; }
static void copy(float *to, const float *from, size_t n) { cudaMemcpy(to, from, n * 4, cudaMemcpyDefault); }
#else
extern "C" int launch(const float *, float *, int64_t, int64_t);
static int call(const float *x, float *y, int64_t r, int64_t c) { return launch(x, y, r, c); }
static float *memory(size_t n) { return new float[n]; }
static void copy(float *to, const float *from, size_t n) { memcpy(to, from, n * 4); }
#endif
int main() {
    const int64_t shapes[][2] = {{32, 1000}, {1024, 4096}};
    for (auto &shape : shapes) {
        const int64_t rows = shape[0], cols = shape[1], n = rows * cols;
        std::mt19937 chance(1);
        std::normal_distribution<float> normal;
        std::vector<float> in(n), out(n);
        for (auto &v : in) v = normal(chance);
        float *x = memory(n), *y = memory(n);
        copy(x, in.data(), n);
        double best = 1e30;
        for (int i = 0; i < 20; i++) {
            auto began = std::chrono::steady_clock::now();
            if (int said = call(x, y, rows, cols)) return printf("launch returned %d\\n", said), 1;
            std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
            best = std::min(best, took.count());
        }
        copy(out.data(), y, n);
        double worst = 0;
        for (int64_t r = 0; r < rows; r++) {
            double top = -1e30, sum = 0;
            for (int64_t c = 0; c < cols; c++) top = std::max(top, (double)in[r * cols + c]);
            for (int64_t c = 0; c < cols; c++) sum += std::exp(in[r * cols + c] - top);
            for (int64_t c = 0; c < cols; c++)
                worst = std::max(worst, std::abs(out[r * cols + c] - std::exp(in[r * cols + c] - top) / sum));
        }
        printf("%ldx%ld: max abs error %.2e %s, %.1f us\\n", (long)rows, (long)cols, worst,
               worst < 1e-5 ? "PASS" : "FAIL", best);
    }
}
"""


@dataclass
class Side:
    """One way of doing it."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, what: str, written: int, shown: str, seconds: float, outcome: str) -> None:
        self.rows.append({
            "what": what, "written": written, "shown": len(shown), "seconds": round(seconds, 2), "outcome": outcome,
        })  # fmt: skip

    def total(self, name: str) -> float:
        return sum(row[name] for row in self.rows)


def candidates(device: str) -> dict[str, tuple[str, str]]:
    """Return source and language by name."""
    suffix, language = (".cu", "cuda") if device != "cpu" else (".c", "c")
    found = {
        name: ((SOFTMAX / f"{name}{suffix}").read_text(), language)
        for name in ORDER
        if name not in ("typo", "template")
    }
    found["typo"] = (found["naive"][0].replace("int64_t rows", "int65_t rows", 1), language)
    stream = TEMPLATE.replace("int64_t cols) {", "int64_t cols, cudaStream_t) {", 1)
    found["template"] = ("#include <cuda_runtime.h>\n" + stream, "cuda") if device != "cpu" else (TEMPLATE, "cpp")
    return {name: found[name] for name in ORDER}


def shown_of(result: Any) -> str:
    """Return what a client shows its model."""
    if result.structured_content is not None and not result.is_error:
        return json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
    return "\n".join(getattr(block, "text", "") for block in result.content)


async def with_tools(folder: Path, device: str) -> Side:
    """Do it over stdio, as agents do."""
    side = Side("our tools")
    env = {**os.environ, "GPU_MCP_DATA_DIR": str(folder), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
    server = StdioServerParameters(command=sys.executable, args=["-m", "gpu_mcp_server"], env=env)
    async with Client(server) as client:

        async def call(what: str, tool: str, **given: Any) -> dict[str, Any]:
            began = time.perf_counter()
            result = await client.call_tool(tool, given)
            while (result.structured_content or {}).get("state") in ("queued", "running"):
                job = {"job_id": (result.structured_content or {})["job_id"], "wait_s": 60}
                result = await client.call_tool("job_status", job)
            seconds, data = time.perf_counter() - began, result.structured_content or {}
            outcome = str(data.get("verdict") or data.get("status") or data.get("registered") or "")
            speed = f", {data['speedup']:.2f} of the reference" if data.get("speedup") else ""
            side.add(what, len(json.dumps(given)), shown_of(result), seconds, outcome + speed)
            return data

        if device == "nvcc":
            for name, (source, language) in candidates(device).items():
                await call(name, "compile_kernel", source=source, language=language, arch=ARCH)
            return side
        problem = await call(
            "register", "register_problem", name="softmax", reference=(SOFTMAX / "reference.py").read_text(),
            inputs=[{"name": "x", **TENSOR}], outputs=[{"name": "y", **TENSOR}], shapes=SHAPES, rtol=1e-4, atol=1e-6,
        )  # fmt: skip
        for name, (source, language) in candidates(device).items():
            given = {"problem_id": problem["problem_id"], "source": source, "language": language}
            await call(name, "evaluate_kernel", **given)
        await call("best", "list_attempts", problem_id=problem["problem_id"], view="best")
    return side


def with_shell(folder: Path, device: str) -> Side:
    """Do it with files and commands, one command a step."""
    side = Side("shell and compiler")

    def run(what: str, script: str) -> None:
        began = time.perf_counter()
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
        text = (done.stdout + done.stderr)[:SHELL_CHARACTERS]
        passed = text.count("PASS")
        outcome = f"PASS, {text.split()[-2]} us" if passed == 2 else f"{passed} of 2 pass"
        outcome = "error" if done.returncode else "compiled" if device == "nvcc" else outcome
        side.add(what, len(script), text, time.perf_counter() - began, outcome if what != "test program" else "")

    if device == "nvcc":
        for name, (source, _) in candidates(device).items():
            build = f"nvcc -O3 -arch={ARCH} -Xptxas -v -c {name}.cu -o k.o"
            run(name, f"cat > {name}.cu <<'END'\n{source}END\n{build}")
        return side
    compiler = "nvcc -O3 -arch=native" if device == "cuda" else "g++ -O3 -march=native"
    test = "test.cu" if device == "cuda" else "test.cpp"
    run("test program", f"cat > {test} <<'END'\n{TEST}END\n{compiler} -c {test} -o test.o")
    for name, (source, language) in candidates(device).items():
        file = f"{name}{ {'c': '.c', 'cpp': '.cpp', 'cuda': '.cu'}[language] }"
        own = "gcc -O3 -march=native" if language == "c" else compiler
        build = f"{own} -c {file} -o k.o && {compiler} test.o k.o -lm -o t && ./t"
        run(name, f"cat > {file} <<'END'\n{source}END\n{build}")
    return side


def table(sides: list[Side]) -> str:
    """Return both side by side."""
    lines = ["| step | " + " | ".join(f"{s.name}: shown | s | outcome" for s in sides) + " |"]
    lines.append("| --- |" + " ---: | ---: | --- |" * len(sides))
    names = list(dict.fromkeys(row["what"] for side in sides for row in side.rows))
    for name in names:
        cells = [next((r for r in side.rows if r["what"] == name), None) for side in sides]
        said = [f"{c['shown']:,} | {c['seconds']:.1f} | {c['outcome']}" if c else "| |" for c in cells]
        lines.append(f"| {name} | " + " | ".join(said) + " |")
    sums = [f"{s.total('shown'):,.0f} | {s.total('seconds'):.1f} | {len(s.rows)} calls" for s in sides]
    lines.append("| all | " + " | ".join(sums) + " |")
    wrote = ", ".join(f"{side.name} {side.total('written'):,.0f}" for side in sides)
    return "\n".join(lines) + f"\n\nWritten by the model: {wrote} characters."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda", "nvcc"], default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-bench-"))
    folder.chmod(0o711)
    shell = folder / "shell"
    shell.mkdir()
    try:
        sides = [asyncio.run(with_tools(folder / "data", asked.device)), with_shell(shell, asked.device)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    load = os.getloadavg()[0]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, load {load:.1f}, {os.cpu_count()} cores, Python {platform.python_version()}\n"
    )
    print(table(sides))
    if asked.json:
        asked.json.write_text(json.dumps({side.name: side.rows for side in sides}, indent=1))


if __name__ == "__main__":
    main()
