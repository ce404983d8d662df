"""A laboratory that has something to show: problems, attempts, profiles, a run, hostile names and sources."""

import hashlib
import json
from pathlib import Path
from typing import Any

from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.models.user import User
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.lab import Lab

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
DRIVERS = {H200: "580.65.06", A100: "570.124.06"}
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
TURNED = "\u202e}txet{ \x1b[31m\x00"
SOURCES = [
    """#include <cuda_runtime.h>
#include <math_constants.h>

// One warp a row; a row is read three times.
__global__ void softmax(const float *x, float *y, int n) {
    const int row = blockIdx.x, lane = threadIdx.x;
    float most = -CUDART_INF_F;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, x[row * n + i]);
    for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
    float sum = 0.f;
    for (int i = lane; i < n; i += 32) sum += __expf(x[row * n + i] - most);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    for (int i = lane; i < n; i += 32) y[row * n + i] = __expf(x[row * n + i] - most) / sum;
}
""",
]
SOURCES.append(
    SOURCES[0]
    .replace("// One warp a row; a row is read three times.", "// One warp a row, four values at a time.")
    .replace("for (int i = lane; i < n; i += 32) sum +=", "for (int i = lane * 4; i < n; i += 128) sum +=")
)
OUTCOMES: list[tuple[str, str | None, float | None, int | None, str]] = [
    ("judged", "correct", 0.62, None, "naive, a thread a row"),
    ("judged", "correct", 1.31, 0, "a warp a row"),
    ("compile_failed", None, None, 1, "float4 loads"),
    ("judged", "incorrect", None, 1, "online maximum and sum"),
    ("judged", "correct", 1.94, 1, "float4 loads, aligned"),
    ("judged", "correct", 1.88, 4, "two rows a warp"),
    ("judged", "cheat", None, 4, "keeps the last answer"),
    ("judged", "correct", 2.71, 4, "online softmax: one read"),
    ("timeout", None, None, 7, "persistent blocks"),
    ("judged", "correct", 2.64, 7, "cp.async, two stages"),
    ("judged", "correct", 3.18, 9, "cp.async, three stages, 128 threads"),
    ("judged", "incorrect", None, 10, HOSTILE + TURNED),
]
REASONS = {
    "compile_failed": 'kernel.cu:7: error: identifier "make_float4x" is undefined',
    "incorrect": "wrong at shape rows 4096, cols 1000: 1,024 of 4,096,000 elements differ, worst 0.31 against 1e-05",
    "cheat": "answer of an earlier round: outputs are those of round 3",
    "timeout": "limit of 60 s struck",
}
ROOFLINE = {
    "kernel": "softmax(float const*, float*, int)" + TURNED, "pipe": "fp32", "tflop_s": 1.9, "peak_tflop_s": 60.3,
    "peak_source": "the profiler's sustained peak at the clock of this run",
    "levels": [
        {"level": "dram", "intensity_flop_b": 0.61, "bandwidth_gb_s": 3110.0, "peak_bandwidth_gb_s": 4800.0,
         "roof_tflop_s": 2.93, "of_roof_percent": 64.8},
        {"level": "l2", "intensity_flop_b": 0.55, "bandwidth_gb_s": 3450.0, "peak_bandwidth_gb_s": 9100.0,
         "roof_tflop_s": 5.0, "of_roof_percent": 38.0},
    ],
}  # fmt: skip


def problem(name: str) -> Problem:
    """Return a problem that nobody judges here."""
    tensor = {"dtype": "float32", "shape": ["rows", "cols"]}
    return Problem(
        problem_id="p-" + hashlib.sha256(name.encode()).hexdigest()[:12], content_hash=hashlib.sha256(name.encode()).hexdigest(), name=name,
        description="Softmax over the last dimension, in single precision.", framework="numpy", entry="reference",
        inputs=[TensorSpec(name="x", **tensor)], outputs=[TensorSpec(name="y", **tensor)],
        shapes=[{"rows": 4096, "cols": 1000}], rtol=1e-5, atol=1e-6, flops="5 * rows * cols",
        reference="import numpy as np\n\ndef reference(x):\n    e = np.exp(x - x.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True)\n",
    )  # fmt: skip


def verdict(outcome: str, speedup: float | None) -> dict[str, Any]:
    """Return a verdict as the judge writes it."""
    shapes: list[dict[str, Any]] = []
    for cols, factor in ((1000, 1.0), (4096, 1.08)):
        shape: dict[str, Any] = {"dims": {"rows": 4096, "cols": cols}, "verdict": outcome, "calls_checked": 480}
        if speedup:
            time = 61.0 * factor / speedup
            timing = {"rounds": 24, "calls_per_round": 20}
            shape |= {
                "candidate": {"median_us": time, "low_us": time * 0.99, "high_us": time * 1.01, **timing},
                "reference": {"median_us": 61.0 * factor, "low_us": 60.4, "high_us": 61.7, **timing},
                "speedup": speedup, "speedup_low": speedup * 0.985, "speedup_high": speedup * 1.012,
                "half_width": 0.011, "stopped_by": "half_width", "max_abs_error": 2.4e-7,
                "cache": "a round's 640 MB exceed the cache's 50 MB", "roof": "71 % of the memory's 4.8 TB/s",
            }  # fmt: skip
        shapes.append(shape)
    summary = "8 hidden shapes, 5 distributions, the same inputs again"
    share = [[0.0 if c < 30 else 0.25 * (r % 5) for c in range(48)] for r in range(24)]
    where = {"output": "y", "shape": [4096, 1000], "looked_at": 4_096_000, "wrong": 1024, "share": share}
    found = {"where": where} if outcome == "incorrect" else {}
    return found | {
        "mode": "judge",
        "verdict": outcome,
        "shapes": shapes,
        "trials_summary": summary,
        "notes": [HOSTILE + TURNED],
    }


async def tried(
    lab: Lab, about: Problem, number: int, ids: list[str], device: str = H200, driver: str | None = None
) -> str:
    """Record one of OUTCOMES as an evaluation."""
    status, said, speedup, parent, note = OUTCOMES[number]
    source = SOURCES[number % 2] + (f"// {HOSTILE} {TURNED}\n" if number % 2 else "")
    attempt_id = await lab.store.experience.start(
        "evaluate", problem_id=about.problem_id, problem_hash=about.content_hash, device=device, driver=driver or DRIVERS[device],
        host="local", language="cuda", note=note, parent_id=ids[parent] if parent is not None else None, level="full",
        source_artifact_id=await lab.store.artifacts.put(source.encode(), name="kernel.cu", media_type="text/plain"),
        versions={"nvcc": "13.0.48", "judge": "3.11.2"}, flags='["-O3"]', target="cuda", tier="performance",
    )  # fmt: skip
    evidence: dict[str, Any] = {"seed_commitment": "9f3c" * 8, "sm_clock_mhz": 1980, "memory": HOSTILE + TURNED}
    if status == "compile_failed":
        message = {
            "severity": "error",
            "message": 'identifier "make_float4x" is undefined' + HOSTILE,
            "file": "kernel.cu",
        }
        evidence["diagnostics"] = [
            {**message, "line": 7, "context": ["    float4 v = make_float4x(x);"], "hint": "Is its header included?"}
        ]
    if said:
        data = json.dumps(verdict(said, speedup)).encode()
        evidence["verdict_artifact"] = await lab.store.artifacts.put(data, name="verdict.json")
    if speedup:
        evidence["speedup_range"] = [speedup * 0.94, speedup * 1.05]
        evidence["timed_at"] = "rows=4096,cols=4096"
        evidence |= {10: {"confirmed_by": "itself"}, 0: {"unconfirmable": HOSTILE + TURNED}}.get(number, {})
        evidence["median_range_us"] = [61 / speedup * 0.99, 61 / speedup * 1.01]
    await lab.store.experience.finish(
        attempt_id, status=status, verdict=said, speedup=speedup, median_us=61 / speedup if speedup else None,
        reason=REASONS.get(said or status), evidence=evidence,
    )  # fmt: skip
    return attempt_id


async def filled(lab: Lab, ada: User, bo: User) -> dict[str, str]:
    """Fill a laboratory; return handles by what they are for."""
    softmax, hostile = problem("softmax over rows"), problem(HOSTILE + TURNED)
    ids: list[str] = []
    with acting_as(ada):
        await lab.store.problems.add(softmax)
        await lab.store.problems.add(hostile)
        for number in range(len(OUTCOMES)):
            ids.append(await tried(lab, softmax, number, ids))
        other: list[str] = []
        for number in range(6):
            other.append(await tried(lab, softmax, number, other, A100))
        await tried(lab, softmax, 0, [], H200, DRIVERS[A100])
        profile = await lab.store.experience.start("profile", parent_id=ids[10], device=H200)
        said = (
            "softmax: bound by dram at 65 % of its peak\nstalls: long scoreboard 61 %, wait 12 %\n" + HOSTILE + TURNED
        )
        await lab.store.experience.finish(
            profile, status="ok", reason=said[:40], evidence={"verdict": said, "roofline": [ROOFLINE]}
        )
    with acting_as(bo):
        secret = problem("secret of bo")
        await lab.store.problems.add(secret)
        hidden = await tried(lab, secret, 0, [])
    run = await ran(lab, ada, softmax, ids)
    return {
        "problem": softmax.problem_id,
        "hostile": hostile.problem_id,
        "best": ids[10],
        "wrong": ids[3],
        "broken": ids[2],
        "plain": ids[9],
        "hidden": hidden,
        "profile": profile,
        "run": run,
    }


async def ran(lab: Lab, ada: User, about: Problem, ids: list[str]) -> str:
    """Write the journal of a run, as one writes it that was begun and is going on."""
    agent = {"command": ["/usr/bin/python3"]}
    runs = Runs(lab)
    run = runs.create(plan_of({"name": "softmax-h200", "problem": about.problem_id, "agent": agent}, Path()))
    stages = {"compile_failed": "compile", "incorrect": "correctness", "cheat": "correctness", "correct": "performance"}
    entries: list[dict[str, Any]] = [
        {"event": "done", "step": "problem", "problem_id": about.problem_id},
        {"event": "done", "step": "specification-001", "kind": "specification", "seconds": 41.0, "outcome": "failed", "why": "no JSON in the answer"},
        {"event": "done", "step": "specification-002", "kind": "specification", "seconds": 38.5, "outcome": "ok", "why": ""},
    ]  # fmt: skip
    for number, (status, said, speedup, _, _) in enumerate(OUTCOMES[:11], 1):
        outcome = said or status
        reason = REASONS.get(outcome, "") if number != 7 else HOSTILE + TURNED
        found = {
            "attempt_id": ids[number - 1],
            "stage": stages.get(outcome, "correctness"),
            "outcome": outcome,
            "reason": reason,
            "speedup": speedup,
            "speedup_range": [speedup * 0.94, speedup * 1.05] if speedup else None,
            "trust": "confirmed" if number % 2 else "provisional",
        }
        entries.append(
            {
                "event": "done",
                "step": f"code-{number:03}",
                "kind": "code",
                "seconds": 22.0 + 9 * (number % 4),
                "outcome": "ok",
                "why": "",
                "cost_usd": 0.12,
            }
        )
        entries.append(
            {
                "event": "done",
                "step": f"judge-{number:03}",
                "kind": "judge",
                "seconds": 4.0 + number,
                "outcome": outcome,
                "speedup": speedup,
                "verdict": found,
            }
        )
        if outcome == "correct":
            bound = f"{'memory' if number < 8 else HOSTILE} ({40 + number} %)"
            profile = {"attempt_id": ids[number - 1], "level": "standard", "bound": bound}
            entries.append(
                {
                    "event": "done",
                    "step": f"profile-{number:03}",
                    "kind": "profile",
                    "seconds": 9.0,
                    "outcome": f"standard: bound by {bound}",
                    "profile": profile,
                }
            )
        if number == 4:
            entries.append(
                {
                    "event": "done",
                    "step": "lookup-004",
                    "kind": "lookup",
                    "seconds": 1.2,
                    "outcome": "doc://cuda/13.0/function/make_float4",
                    "text": "",
                }
            )
    entries.append({"event": "begun", "step": "code-012", "kind": "code", "job_id": "j-1"})
    (runs.folder(run) / "journal.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    with acting_as(ada):
        prompt = await lab.store.artifacts.put(b"prompt", name="prompt")
        await lab.store.experience.keep_prompt(ids[0], run, "judge-001", prompt)
    return run
