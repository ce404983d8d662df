"""Candidates of a public collection, judged by a plain harness and by our judge, side by side.

    python benchmarks/judge/public_candidates.py FILE --ids drawn:60 --json OUT.jsonl --table OUT.md

FILE has a line of JSON for each candidate: level_id, task_id, ref_code, custom_code. Such a file is
optimized_cuda_code/h100.json of the public repository deepreinforce-ai/CUDA-L1; it is not part of this repository.
Run it again until it says that nothing is left: one run is a shard of at most --shard-seconds, each candidate is
written as soon as it is judged, and what is written is not judged again. Each shard begins with a control candidate,
whose speed-up is known. On machines that keep nothing, --part 3/8 takes every eighth candidate, and --rows FILE... adds
the rows of other runs to the table; with --shard-seconds 0 only the table is made. With --judge-only the table holds
claims against verdicts. Needs a Python with torch, and for
candidates with extensions nvcc, g++ and ninja. Whatever needs the GPU goes one after the other; what is compiled and
imported does not wait for that.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import (  # noqa: E402
    CONTROL,
    Candidate,
    Results,
    Shard,
    candidates_in,
    chosen,
    part_of,
    print_end,
    write_table,
)
from candidate_table import table  # noqa: E402
from judge_side import JudgeSide, Turn  # noqa: E402 - they lie beside this file

CONTROL_ELEMENTS = {"cuda": 1 << 25, "cpu": 1 << 20}
CONTROL_REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.clone().clone().clone().relu()
def get_inputs():
    return [torch.randn(ELEMENTS)]
def get_init_inputs():
    return []
"""
"""Reads and writes everything four times, where the candidate does it once."""
CONTROL_SOURCE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.relu()
"""


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ids", default="drawn:60", help="names with commas between them, drawn:COUNT, or all")
    parser.add_argument("--judge-only", action="store_true", help="without the plain harness")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth candidate, from the Kth on")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="files of other runs, for the table")
    parser.add_argument("--json", type=Path, required=True, help="a line for each candidate; it is added to")
    parser.add_argument("--table", type=Path, help="where all lines so far go as Markdown; else they are printed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--basis", choices=["device", "call", "kernelbench"], default="device", help="time that ranks")
    parser.add_argument("--shard-seconds", type=float, default=460.0)
    parser.add_argument("--plain-seconds", type=float, default=120.0, help="for one candidate by the plain harness")
    parser.add_argument("--judge-seconds", type=float, default=150.0, help="for one candidate by the judge")
    parser.add_argument("--at-once", type=int, default=4, help="candidates under way; one of them has the GPU")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with NumPy and torch")
    return parser.parse_args()


class Plain:
    """The plain harness in a process for each candidate; the next one imports torch ahead."""

    def __init__(self, python: str, device: str, folder: Path) -> None:
        self._argv = [python, "-W", "ignore", str(Path(__file__).with_name("plain_harness.py")), device]
        self._folder, self._count = folder, 0
        self._spare: asyncio.Task[tuple[asyncio.subprocess.Process, Path]] | None = None

    def prepare(self) -> None:
        """Start a process ahead."""
        self._spare = self._spare or asyncio.create_task(self._started())

    async def _started(self) -> tuple[asyncio.subprocess.Process, Path]:
        pipe = asyncio.subprocess.PIPE
        self._count += 1
        folder = self._folder / str(self._count)
        await asyncio.to_thread(folder.mkdir)
        places = {"TORCH_EXTENSIONS_DIR": str(folder / "ext"), "TRITON_CACHE_DIR": str(folder / "triton")}
        log = await asyncio.to_thread((folder / "log").open, "wb")
        with log:
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, stderr=log, cwd=folder, limit=1 << 24,
                env={**os.environ, **places}, start_new_session=True,
            )  # fmt: skip
        return process, folder

    async def measured(self, candidate: Candidate, turn: Turn, limit_s: float) -> dict[str, Any]:
        """Return what the plain harness says of a candidate."""
        self.prepare()
        assert self._spare
        spare, self._spare = self._spare, None
        (process, folder), begin = await spare, time.monotonic()
        self.prepare()
        task = {"reference": candidate.reference, "candidate": candidate.source, "folder": str(folder)}
        try:
            imported = await self._asked(process, task, limit_s)
            if "imported" in imported:
                async with turn.held("plain"):
                    found = await self._asked(process, "go", limit_s)
            else:
                found = imported
        finally:
            await _end(process)
        return {**found, "held": turn.seconds, "wall_s": round(time.monotonic() - begin, 1)}

    async def _asked(self, process: asyncio.subprocess.Process, what: Any, limit_s: float) -> dict[str, Any]:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(what).encode() + b"\n")
        try:
            async with asyncio.timeout(limit_s):
                line = await process.stdout.readline()
        except TimeoutError:
            return {"error": f"not done in {limit_s:.0f} s", "stage": "answer"}
        return json.loads(line) if line else {"error": "its process ended without an answer", "stage": "answer"}

    async def close(self) -> None:
        """End the process that waits."""
        if self._spare is not None:
            await _end((await self._spare)[0])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process with the compilers that it started: it is the leader of their session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


class Sides:
    """Both sides of one candidate."""

    def __init__(self, lab: Any, plain: Plain | None, options: argparse.Namespace) -> None:
        self._device = asyncio.Lock()
        # The judge alone waits in its own queue, where the next one imports meanwhile.
        turns = self._device if plain else contextlib.nullcontext()
        self._judge = JudgeSide(lab, options.device, turns, options.judge_seconds)
        self._plain, self._options = plain, options

    async def play(self, candidate: Candidate) -> dict[str, Any]:
        """Return what both sides say, or the judge alone."""
        wish = {"accept_degenerate": True, "basis": self._options.basis}
        if self._plain is None:
            return {"claimed": candidate.claimed, "judge": await self._judge.judged(candidate, wish)}
        async with asyncio.TaskGroup() as group:
            judged = group.create_task(self._judge.judged(candidate, wish))
            plain = group.create_task(self._measured(candidate, self._plain))
        return {"claimed": candidate.claimed, "plain": plain.result(), "judge": judged.result()}

    async def _measured(self, candidate: Candidate, plain: Plain) -> dict[str, Any]:
        turn = Turn(self._device, self._options.plain_seconds)
        try:
            return await plain.measured(candidate, turn, self._options.plain_seconds)
        except (OSError, ValueError) as error:  # its process ended as it was asked, or answered nonsense
            return {"error": f"{type(error).__name__}: {error}"[:600], "stage": "answer"}


async def shard(options: argparse.Namespace) -> list[str]:
    """Judge one shard in a laboratory of its own; return what is left."""
    from tests.laboratory import laboratory

    known = await asyncio.to_thread(candidates_in, options.file)
    results, wanted = Results(options.json), part_of(chosen(known, options.ids), options.part)
    elements = str(CONTROL_ELEMENTS[options.device])
    control = Candidate(CONTROL, CONTROL_REFERENCE.replace("ELEMENTS", elements), CONTROL_SOURCE)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        plain = None if options.judge_only else Plain(options.judge_python, options.device, Path(folder))
        if plain is not None:
            plain.prepare()
        try:
            async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
                sides = Sides(lab, plain, options)
                left_s = options.shard_seconds - (time.monotonic() - begin)
                running = Shard(results, sides.play, limit_s=left_s, at_once=options.at_once)
                return await running.run(control, wanted)
        finally:
            if plain is not None:
                await plain.close()


def main() -> None:
    """Judge a shard, and write the table of all that there is."""
    options = given()
    begin = time.monotonic()
    left = asyncio.run(shard(options)) if options.shard_seconds > 0 else []
    rows = [row for path in (options.json, *options.rows) for row in Results(path).rows]
    write_table(table(rows), options.table, options.device, options.file.name)
    print_end(begin, left)


if __name__ == "__main__":
    main()
