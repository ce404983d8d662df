"""From a program to a kernel in it, step by step: hot spots, capture, verdict, overlay, the whole measured by turns.

    python benchmarks/programs/in_place.py --device cuda --json OUT [--part K/N] [--cases WORD]

Cases: an image model whose norm gets one kernel (a win), a program whose own Triton kernel is replaced, a right and
faster kernel that slows its program by the layout that it writes, and an operator, whose time as a problem stands
beside its time in the program. Every step's whole report is written to OUT as soon as it is there.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.judge.candidate_shards import part_of  # noqa: E402
from gpu_mcp_server.errors import GpuMcpError  # noqa: E402
from gpu_mcp_server.models.evaluation import TimingOptions  # noqa: E402
from gpu_mcp_server.models.program_speed import VerifyOptions  # noqa: E402
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource  # noqa: E402
from gpu_mcp_server.services.lab import Lab  # noqa: E402
from tests.laboratory import laboratory  # noqa: E402

FOLDER = Path(__file__).parent
EXAMPLES = ROOT / "examples" / "programs"


@dataclass(frozen=True)
class Case:
    """A program, what is captured of it, and the kernel that answers it, by device."""

    name: str
    program: Path
    target: str
    arguments: dict[str, tuple[str, ...]]
    """Few steps, for the recordings."""
    kernels: dict[str, str]
    """A file of this folder, by device."""
    hotspots: bool = True
    whole: tuple[str, ...] = ()
    """Arguments on a GPU of the program as a whole: seconds beside its start. Nothing: the kernel is not put in."""
    expected: tuple[str, ...] = ()
    """What the whole's status may be on a GPU; on a processor its start is most of it, so all of MEASURED will do."""


TIMED = """
import runpy, sys, time, torch
torch.cuda.init()
sys.argv = sys.argv[1:]
began = time.perf_counter()
runpy.run_path(sys.argv[0], run_name="__main__")
torch.cuda.synchronize()
print("seconds", time.perf_counter() - began)
"""
"""Runs a program on a GPU without any profiler, from where a recording begins."""
MEASURED = ("faster", "same", "slower")
CASES = (
    Case("image model", EXAMPLES / "image_model.py", "Sequential.*.norm",
         {"cuda": ("100", "1024"), "cpu": ("2", "32")}, {"cuda": "norm_triton.py", "cpu": "norm.c"},
         whole=("2000", "1024"), expected=("faster",)),
    Case("layout trap", EXAMPLES / "layout_trap.py", "__main__:gate",
         {"cuda": ("20", "512", "256"), "cpu": ("4", "512", "512")}, {"cuda": "gate.cu", "cpu": "gate.c"},
         whole=("300", "512", "256"), expected=("slower",)),
    Case("Triton kernel", FOLDER / "own_triton.py", "__main__:scale_add[grid]",
         {"cuda": ("300", "16777216"), "cpu": ("3", "100")}, {"cuda": "scale_add.cu", "cpu": "scale_add.c"},
         whole=("15000", "16777216"), expected=MEASURED),
    Case("operator", EXAMPLES / "image_model.py", "aten::relu",
         {"cuda": ("100", "1024"), "cpu": ("2", "32")}, {"cuda": "relu.cu", "cpu": "relu.c"}),
)  # fmt: skip


class Played:
    """The steps of one case, each written down as it ends."""

    def __init__(self, case: Case, rows: list[dict[str, Any]], path: Path) -> None:
        self.row: dict[str, Any] = {"case": case.name, "target": case.target, "steps": {}}
        self._rows, self._path = rows, path
        rows.append(self.row)

    async def done(self, name: str, work: Awaitable[Any]) -> Any:
        """Do one step, and keep its report and seconds."""
        begin = time.monotonic()
        found = await work
        seconds = round(time.monotonic() - begin, 1)
        self.row["steps"][name] = {"seconds": seconds, **found.model_dump(mode="json", exclude_none=True)}
        print(f"--- {self.row['case']}, {name}, {seconds} s\n{found.summary()}", flush=True)
        self.write()
        return found

    def ends(self, what: str, *, good: bool) -> bool:
        """Keep what the case ended with, and return whether that is as expected."""
        self.row.update(end=what, good=good)
        self.write()
        print(f"=== {self.row['case']}: {what}{'' if good else ', not as expected'}", flush=True)
        return good

    def write(self) -> None:
        """Write all rows down."""
        self._path.write_text(json.dumps(self._rows, indent=1))


async def play(lab: Lab, case: Case, device: str, python: str, played: Played) -> bool:
    """Do the steps of a case; return whether it ended as expected."""
    files: dict[str, str | bytes] = {case.program.name: case.program.read_text()}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    command = [python, case.program.name, *case.arguments[device]]
    if case.hotspots:
        hot = await played.done("hotspots", lab.programs.hotspots.find(command, workspace))
        if device == "cuda" and hot.operators_us:
            played.row["busy_without_profiler"] = await busy_share(lab, command, workspace, hot.operators_us)
            print(f"--- {case.name}, busy without a profiler: {played.row['busy_without_profiler']}", flush=True)
    found = await played.done("capture", lab.programs.capture.capture(command, case.target, workspace))
    if found.problem is None:
        return played.ends(f"nothing was captured: {found.status}", good=False)
    text = (FOLDER / case.kernels[device]).read_text()
    suffix = case.kernels[device].rpartition(".")[2]
    language: Any = {"py": "triton", "cu": "cuda", "c": "c"}[suffix]
    timing = TimingOptions(tier="performance" if device == "cuda" else "correctness")
    verdict = await played.done(
        "verdict",
        lab.evaluation.evaluator.evaluate(
            found.problem.problem_id, CandidateSource(text, language, NAMES[language]), device=device, timing=timing
        ),
    )
    if verdict.verdict != "correct" or not case.whole:
        return played.ends(verdict.verdict or verdict.status, good=verdict.verdict == "correct")
    applied = await played.done("overlay", lab.programs.overlays.apply(verdict.attempt_id, workspace))
    if device == "cuda":
        command = [python, case.program.name, *case.whole]
    whole = await played.done("whole", verified(lab, command, applied.workspace_id))
    return played.ends(whole.status, good=whole.status in (case.expected if device == "cuda" else MEASURED))


async def busy_share(lab: Lab, command: list[str], workspace: str, kernels_us: float) -> float | None:
    """Return the share of the time for which these kernels keep the GPU busy if nothing records the program."""
    timed = [command[0], "-c", TIMED, *command[1:]]
    done = await lab.commands.run(timed, workspace_id=workspace, gpus=1, timeout_s=120)
    words = done.stdout.split()
    if done.status != "ok" or "seconds" not in words:
        return None
    whole_s = float(words[-1])
    return kernels_us / 1e6 / whole_s


async def verified(lab: Lab, command: list[str], workspace: str) -> Any:
    """Return what the kernel brought to the whole, however long that takes."""
    whole = await lab.programs.verifier.verify(command, workspace, options=VerifyOptions(pairs=6))
    while whole.status == "running":
        row = await lab.jobs.table.get(whole.job_id or "")
        done = await lab.jobs.runner.wait(whole.job_id or "", row.host)
        if done is not None:
            whole = await lab.programs.verifier.finish(done, row)
    return whole


async def main() -> None:
    """Play the cases of a shard, the next one also where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--part", default="1/1", help="K/N: every Nth case, from the Kth on")
    parser.add_argument("--cases", default="", help="a word in the names of those that are wanted; all if absent")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with torch")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": given.judge_python}}) as lab:
        for case in part_of([each for each in CASES if given.cases in each.name], given.part):
            played = Played(case, rows, given.json)
            try:
                good = await play(lab, case, given.device, given.judge_python, played)
            except GpuMcpError as error:
                good = played.ends(f"error: {error}", good=False)
            bad += [] if good else [case.name]
    if bad:
        raise SystemExit(f"not as expected: {', '.join(bad)}")


if __name__ == "__main__":
    asyncio.run(main())
