# ruff: noqa: ASYNC221, ASYNC240 - one thing after the other is what is timed here
"""check_memory on planted mistakes, and profile_kernel beside plain `ncu --set basic`, on a GPU: about two minutes.

Prints a table and, with --into FOLDER, leaves results.json, the verdicts and the profiler's own words there.
Exits with 1 when a part broke or a planted mistake was missed.
Goal: level standard takes at most 1.6 times the wall time of plain ncu with its basic set, on the same program.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

HERE = Path(__file__).parent
PLANTED = (
    ("past_end", "memcheck", "invalid access"),
    ("wild", "memcheck", "invalid access"),
    ("race", "racecheck", "race"),
    ("unwritten", "initcheck", "uninitialized"),
    ("bad_mask", "synccheck", "barrier"),
    ("clean", "memcheck", None),
    ("clean", "racecheck", None),
)
ROUNDS = 3
LAUNCHER = """
__global__ void twice(const float *x, float *y, long long n) {
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" int launch(const float *x, float *y, long long n, void *stream) {
    twice<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, y, n);
    return 0;
}
"""


def line_of(source: str, mark: str) -> int | None:
    """Return the number of the line with a planted mistake."""
    lines = source.splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"BUG {mark}")), None)


async def checks(lab: Lab, workspace: str) -> list[dict[str, Any]]:
    """Check every planted mistake."""
    cuda, triton = ((HERE / n).read_text() for n in ("planted.cu", "planted_triton.py"))
    rows: list[dict[str, Any]] = []
    python = (await lab.hosts.probe("local")).judge
    wanted = [(["./planted", m], t, k, line_of(cuda, m)) for m, t, k in PLANTED]
    if python and python.triton:
        wanted.append(
            ([python.path, "planted_triton.py", "past_end"], "memcheck", "invalid access", line_of(triton, "past_end"))
        )
    for command, tool, kind, line in wanted:
        began = time.monotonic()
        found = await lab.profiles.checker.check(RunTarget(command=command, workspace_id=workspace, timeout_s=60), tool)
        first = found.findings[0] if found.findings else None
        right = (
            found.status == "clean" if kind is None else first is not None and (first.kind, first.line) == (kind, line)
        )
        text = found.summary()
        rows.append(
            {"program": command[-1], "tool": tool, "right": right, "seconds": time.monotonic() - began, "said": text}
        )
        word, seconds = "ok" if right else "MISS", rows[-1]["seconds"]
        print(f"{word:<4} {command[-1]:<10} {tool:<10} {seconds:5.1f} s  {text.splitlines()[0]}", flush=True)
        if not right:
            print(text, flush=True)
    return rows


async def against_plain(lab: Lab, workspace: str, program: Path) -> dict[str, Any]:
    """Time level standard beside plain ncu, in turns."""
    ncu = (await lab.hosts.probe("local")).toolchains.tools["ncu"].path
    plain = [
        ncu,
        "--clock-control",
        "none",
        "--set",
        "basic",
        "-k",
        "tiled",
        "--launch-skip",
        "1",
        "-c",
        "1",
        "-f",
        "-o",
        str(program.parent / "plain"),
    ]
    target = RunTarget(command=["./planted", "perf"], workspace_id=workspace, kernel="tiled", skip=1)
    times: dict[str, list[float]] = {"plain": [], "standard": []}
    result = None
    for _ in range(ROUNDS):
        began = time.monotonic()
        subprocess.run([*plain, str(program), "perf"], check=True, stdout=subprocess.DEVNULL, timeout=120)
        times["plain"].append(time.monotonic() - began)
        began = time.monotonic()
        result = await lab.profiles.profiler.profile(target)
        times["standard"].append(time.monotonic() - began)
    assert result is not None
    ratio = statistics.median(times["standard"]) / statistics.median(times["plain"])
    print(f"plain ncu --set basic {times['plain']} s, level standard {times['standard']} s: {ratio:.2f} (goal 1.6)")
    print(result.summary(), f"\n[{len(result.verdict)} characters]", flush=True)
    return {
        "times_s": times,
        "ratio": ratio,
        "status": result.status,
        "verdict": result.verdict,
        "profile_id": result.profile_id,
        "said": result.summary(),
    }


async def profiles(lab: Lab, workspace: str, first: str) -> list[dict[str, Any]]:
    """Profile at the other levels, an attempt, and compare."""
    python = (await lab.hosts.probe("local")).judge
    whole = RunTarget(command=["./planted", "perf"], workspace_id=workspace, count=2)
    wanted: list[tuple[str, RunTarget, Any]] = [("full", whole, "full")]
    if python and python.triton:
        script = [python.path, "planted_triton.py", "perf"]
        wanted.append(("quick Triton", RunTarget(command=script, workspace_id=workspace), "quick"))
        wanted.append(
            ("standard Triton", RunTarget(command=script, workspace_id=workspace, kernel="softmax", skip=1), "standard")
        )
    attempt = await evaluated(lab)
    wanted.append(("attempt", RunTarget(attempt_id=attempt, shape={"n": 1 << 24}, kernel="twice", skip=1), "standard"))
    rows: list[dict[str, Any]] = []
    for title, target, level in wanted:
        began = time.monotonic()
        result = await lab.profiles.profiler.profile(target, level)
        rows.append(
            {
                "title": title,
                "seconds": time.monotonic() - began,
                "status": result.status,
                "said": result.summary(),
                "profile_id": result.profile_id,
            }
        )
        print(f"--- {title}: {result.status} in {rows[-1]['seconds']:.1f} s\n{result.summary()}", flush=True)
    checked = await lab.profiles.checker.check(RunTarget(attempt_id=attempt, shape={"n": 1000}))
    print(f"--- attempt, memcheck: {checked.summary()}")
    beside = await lab.profiles.queries.ask(rows[0]["profile_id"], "compare", kernel="tiled", other=first)
    print(f"--- compare\n{beside.text}", flush=True)
    return [*rows, {"title": "attempt memcheck", "said": checked.summary()}, {"title": "compare", "said": beside.text}]


async def evaluated(lab: Lab) -> str:
    """Judge a small candidate, to have an attempt."""
    info = await lab.evaluation.registry.register(
        name="twice", reference="def reference(x):\n    return 2 * x\n", framework="numpy", entry="reference",
        shapes=[{"n": 100_000}], rtol=1e-5, atol=1e-6,
        inputs=[TensorSpec(name="x", dtype="float32", shape=["n"])],
        outputs=[TensorSpec(name="y", dtype="float32", shape=["n"])],
    )  # fmt: skip
    result = await lab.evaluation.evaluator.evaluate(info.problem_id, CandidateSource(LAUNCHER, "cuda", "kernel.cu"))
    print(f"--- attempt {result.attempt_id}: {result.status} {result.verdict} {result.reason}", flush=True)
    return result.attempt_id


class Parts:
    """Results of each part; one that breaks does not stop the others, and is remembered."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.broken: list[str] = []

    async def done(self, name: str, work: Awaitable[Any]) -> Any:
        """Do one part."""
        try:
            self.results[name] = await work
        except Exception:
            self.results[name] = traceback.format_exc()
            self.broken.append(name)
            print(f"{name} broke:\n{self.results[name]}", flush=True)
        return self.results[name]


async def run(into: Path | None) -> list[str]:
    """Do all of it; return the names of the parts that broke, which did not stop the others."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-profiling-"))
    folder.chmod(0o711)
    program = folder / "planted"
    subprocess.run(["nvcc", "-arch=native", "-lineinfo", "-o", program, HERE / "planted.cu"], check=True)
    results: dict[str, Any] = {
        "device": subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout.strip()
    }
    parts = Parts(results)
    async with Lab.open(Settings(data_dir=folder / "data")) as lab:
        tools = (await lab.hosts.probe("local")).toolchains.tools
        print(
            {
                n: (t.path, t.version)
                for n, t in tools.items()
                if n in ("ncu", "nsys", "compute-sanitizer", "cuda-gdb", "mpirun")
            }
        )
        files: dict[str, str | bytes] = {n: (HERE / n).read_text() for n in ("planted.cu", "planted_triton.py")}
        workspace = (await lab.store.workspaces.write(None, files)).workspace_id
        built = await lab.commands.run(
            ["nvcc", "-arch=native", "-lineinfo", "-o", "planted", "planted.cu"],
            workspace_id=workspace,
            gpus=1,
            timeout_s=120,
        )
        print(built.summary().splitlines()[0])

        rows = await parts.done("checks", checks(lab, workspace))
        parts.broken += (
            [f"{r['program']} by {r['tool']}" for r in rows if not r["right"]] if isinstance(rows, list) else []
        )
        plain = await parts.done("plain", against_plain(lab, workspace, program))
        await parts.done("profiles", profiles(lab, workspace, plain["profile_id"] if isinstance(plain, dict) else ""))
        wild = await lab.commands.run(["./planted", "wild"], workspace_id=workspace, gpus=1)
        results["illegal address"] = wild.summary()
        print(f"--- illegal address in run_command\n{wild.summary()}")
        status = await lab.status.gpus.status()
        results["status"] = status.model_dump(mode="json", exclude_none=True)
        print(status.summary())
        if into is not None:
            into.mkdir(parents=True, exist_ok=True)
            (into / "profiling.json").write_text(json.dumps(results, indent=1))
            for row in (
                r for r in [plain, *results.get("profiles", [])] if isinstance(r, dict) and r.get("profile_id")
            ):
                evidence = (await lab.store.experience.get(row["profile_id"])).evidence or {}
                for key, suffix in (("profile_artifact", "json"), ("report_artifact", "ncu-rep")):
                    if evidence.get(key):
                        shutil.copy(
                            await lab.store.artifacts.path(str(evidence[key])), into / f"{row['profile_id']}.{suffix}"
                        )
    return parts.broken


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="Folder for results.")
    broken = asyncio.run(run(parser.parse_args().into))
    if broken:
        raise SystemExit(f"these parts broke, their figures are missing: {', '.join(broken)}")


if __name__ == "__main__":
    main()
