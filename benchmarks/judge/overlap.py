"""Time calls by themselves and in a round: `python benchmarks/judge/overlap.py`.

Candidates of examples/cheats/cuda, honest ones and some whose calls run beside each other or share work, are judged by
the judge's own processes, without a sandbox; a launcher of Triton and a ModelNew, whose short calls the processor
makes what they take, beside them. For each shape: the median of a call in rounds; what the same calls took
one by one (`judge/timing/serial_calls.py`): from request to reply, of it the launching, and a request for no call; and
what one took with copies behind the calls (`judge/checks/stream_order_rounds.py`). "separator": what such a copy takes
by itself. Needs a GPU, nvcc and a Python with torch; about ten seconds a candidate.
"""

import argparse
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

FOLDER = ROOT / "examples" / "cheats" / "cuda"
HONEST = (
    "plain",
    "own_stream_joined",
    "own_stream_implicit",
    "two_streams_joined",
    "persistent",
    "graph_for_each",
    "static_scratch",
)
PYTHON = {
    "triton": """import triton
import triton.language as tl

@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * cols
    values = tl.load(x + row + at, mask=at < cols, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + at, powers / tl.sum(powers, axis=0), mask=at < cols)

def launch(x, y, rows, cols):
    softmax[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
""",
    "model": """import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
""",
}
SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 1024, "cols": 1024}, {"rows": 4096, "cols": 1024}]
TASK = {"framework": "torch", "device": "cuda", "fixed_shapes": True, "rtol": 1e-4, "atol": 1e-6, "budget_s": 0.5}


def sources() -> dict[str, str]:
    """Return the candidates."""
    found = {name: (FOLDER / f"{name}.cu").read_text() for name in (*HONEST, "autotuned", "batch_counted", "beside")}
    slow = found["beside"]
    found["beside, two streams"] = slow.replace("% 16", "% 2").replace("own[16]", "own[2]")
    found["beside, a warp a row"] = slow.replace("<<<4, 32", "<<<(unsigned)rows, 32")
    created = "cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)"
    found["beside, implicit, four streams"] = slow.replace("% 16", "% 4").replace(created, "cudaStreamCreate(&stream)")
    found["beside, implicit, a warp a row"] = found["beside, a warp a row"].replace(
        created, "cudaStreamCreate(&stream)"
    )
    forked = (FOLDER / "two_streams_joined.cu").read_text().replace("own[2]", "own[8]").replace("end[2]", "end[8]")
    forked = forked.replace("i < 2", "i < 8").replace("rows / 2", "rows / 8").replace("i ? half : 0", "i * half")
    found["eight_streams_joined"] = forked.replace("i ? rows - half : half", "i < 7 ? half : rows - 7 * half")
    joined = "    static cudaEvent_t end[16];\n    cudaEvent_t &done = end[turn % 16];\n"
    joined += "    if (!done) cudaEventCreateWithFlags(&done, cudaEventDisableTiming);\n"
    joined += (
        "    cudaEventRecord(done, stream);\n    cudaStreamWaitEvent(given, done, 0);\n    return cudaGetLastError"
    )
    found["beside, joined"] = slow.replace("    return cudaGetLastError", joined).replace(
        "cudaStream_t)", "cudaStream_t given)"
    )
    found["side_stream"] = (FOLDER / "side_stream.cu").read_text()
    return found | PYTHON


def main() -> None:
    """Judge them and print a line for each shape."""
    from tests.judge.harness import EXAMPLES, build, judge

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one of them")
    only = parser.parse_args().only
    line = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
    print(datetime.now(UTC).isoformat(), subprocess.run(line, capture_output=True, text=True, check=False).stdout)
    for name, text in sources().items():
        if only in (None, name):
            with tempfile.TemporaryDirectory() as made:
                path = Path(made) / ("candidate.py" if name in PYTHON else "candidate.cu")
                path.write_text(text)
                task = {**TASK, "shapes": SHAPES, "candidate": name if name in PYTHON else "library"}
                file = path if name in PYTHON else build(path, Path(made))
                verdict = judge(Path(made), EXAMPLES / "reference_torch.py", file, **task).verdict
            copy_us = verdict["evidence"].get("separator_us")
            print(name, verdict["verdict"], verdict["reason"], "separator", copy_us, flush=True)
            for shape in verdict["shapes"]:
                timed, samples = shape.get("candidate") or {}, shape.get("samples") or {}
                why = [
                    note
                    for note in shape["notes"]
                    if note.startswith(("no time", "too short", "a call takes at least"))
                ]
                told = (samples.get(name) for name in ("one_by_one_us", "separated_us"))
                print("   ", shape["dims"], timed.get("median_us"), *told, *why, flush=True)


if __name__ == "__main__":
    main()
