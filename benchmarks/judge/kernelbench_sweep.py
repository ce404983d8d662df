"""Every KernelBench problem through the judge: what is refused, condemned and let pass.

    python benchmarks/judge/kernelbench_sweep.py --kernelbench FOLDER --shrink --every 4 --json OUT

FOLDER is a checkout of https://github.com/ScalingIntelligence/KernelBench (MIT); it is not part of this repository.
Each file is imported as it stands, or with --shrink with smaller sizes, and where that is refused again with a wish.
Then ModelNew is judged untimed: the same Model, mathematically equal forms and wrong ones (kernelbench_forms). Which
forms are equal and which wrong PyTorch itself says, apart from the judge. A line for each file at once, then a summary:
a condemned honest form or a wrong one that passed is a fault of the judge or of the problem's tolerance. Needs a Python
with torch (--judge-python). Level 4 needs transformers and the network.
"""

import argparse
import asyncio
import json
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kernelbench_forms import HONEST, WRONG, written  # noqa: E402 - it is beside this file

SAME = "the same"
WISHES: tuple[dict[str, Any], ...] = ({"distribution": "normal"}, {"atol": 1e-8})
"""What is wished for after a refusal, in this order."""
FORMS_S = 60.0


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shrink", action="store_true", help="smaller sizes, for a processor")
    parser.add_argument("--operations", type=float, default=1e9, help="of a call of what is shrunk")
    parser.add_argument("--elements", type=float, default=3e6, help="of the tensors of what is shrunk")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--every", type=int, default=1, help="one file of so many, of each level")
    parser.add_argument("--first", type=int, default=0, help="which is the first of them")
    parser.add_argument("--same-only", action="store_true", help="no other form of ModelNew than the same Model")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--judge-python", default=sys.executable)
    parser.add_argument("--deadline-s", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path, help="a line for each file")
    return parser.parse_args()


def files(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Return the files, levels by turns, so that a deadline cuts each alike."""
    found: list[tuple[int, int, Path]] = []
    for level in options.levels.split(","):
        paths = sorted((folder / f"level{level}").glob("*.py"), key=lambda p: int(p.name.split("_")[0]))
        found += [(place, int(level), path) for place, path in enumerate(paths[options.first :: options.every])]
    return [path for _, _, path in sorted(found)]


def reason_class(reason: str) -> str:
    """Return a refusal's kind: its words without names and numbers."""
    reason = re.sub(r"^Refused: (at : )?", "", reason)
    for words in ("answer to another seed", "zeros passes", "ones passes", "mean passes", "copy of", "differently"):
        if words in reason:
            return words
    return re.sub(r"\d\S*", "N", reason.strip().splitlines()[-1])[:80]


class Helper:
    """A program of this folder that answers a line of JSON by one."""

    def __init__(self, python: str, name: str, *arguments: str) -> None:
        self.argv = [python, "-W", "ignore", str(Path(__file__).with_name(name)), *arguments]
        self.process: asyncio.subprocess.Process | None = None
        self.lock = asyncio.Lock()

    async def ask(self, question: Any, limit_s: float) -> Any:
        """Return the answer, `None` if there is none in time."""
        async with self.lock:
            if self.process is None:
                pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
                self.process = await asyncio.create_subprocess_exec(
                    *self.argv, stdin=pipe, stdout=pipe, stderr=none, limit=1 << 24
                )
            assert self.process.stdin and self.process.stdout
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            try:
                async with asyncio.timeout(limit_s):
                    answer = await self.process.stdout.readline()
            except TimeoutError:
                answer = b""
            if not answer:
                await self.close()
                return None
            return json.loads(answer)

    async def close(self) -> None:
        """End the program."""
        if self.process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            self.process = None


class Sweep:
    """One run over the files."""

    def __init__(self, options: argparse.Namespace, lab: Any) -> None:
        self.options, self.lab = options, lab
        self.end = time.monotonic() + options.deadline_s
        self.free = asyncio.Semaphore(options.at_once)
        python = options.judge_python
        self.shrink = Helper(python, "kernelbench_shrink.py", str(options.operations), str(options.elements))
        self.forms = Helper(python, "kernelbench_forms.py", options.device)
        self.rows: list[dict[str, Any]] = []

    async def file(self, path: Path) -> None:
        """Import a file and judge every form of it; print what came of it."""
        async with self.free:
            if time.monotonic() > self.end:
                return
            row: dict[str, Any] = {"file": f"{path.parent.name}/{path.name}"}
            begin, text = time.monotonic(), await asyncio.to_thread(path.read_text)
            if self.options.shrink:
                small = await self.shrink.ask({"text": text}, FORMS_S) or {"text": text, "wrong": "no answer"}
                text = small.pop("text")
                row["sizes"] = small
            try:
                await self._judged(row, text)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"[:500]
            row["seconds"] = round(time.monotonic() - begin, 1)
            self.rows.append(row)
            print(json.dumps(row), flush=True)
            if self.options.json:
                with self.options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    async def _judged(self, row: dict[str, Any], text: str) -> None:
        from gpu_mcp_server.errors import ProblemRefused
        from gpu_mcp_server.models.problem import ImportOverrides
        from gpu_mcp_server.services.problems.formats.base import ProblemSource

        problem_id = None
        for wish in ({}, *WISHES):
            try:
                info = await self.lab.evaluation.registry.import_file(
                    ProblemSource("problem.py", text, wish=ImportOverrides(**wish))
                )
            except ProblemRefused as error:
                row.setdefault("refused", []).append(str(error)[:400])
                if "passes" not in str(error):
                    break
                continue
            problem_id, row["wish"], row["notes"] = info.problem_id, wish, info.notes
            break
        if problem_id is None:
            return
        row["verdicts"] = {SAME: await self._verdict(problem_id, text, SAME)}
        if self.options.same_only:
            return
        off: dict[str, float | str] = await self.forms.ask({"text": text}, FORMS_S) or {}
        row["off"] = off
        for form, share in off.items():
            if time.monotonic() > self.end:
                return
            if not isinstance(share, str) and (share > 0) == (form in WRONG):
                row["verdicts"][form] = await self._verdict(problem_id, text, form)

    async def _verdict(self, problem_id: str, text: str, form: str) -> list[str]:
        from gpu_mcp_server.models.evaluation import TimingOptions
        from gpu_mcp_server.services.builds.candidate_source import CandidateSource

        source = CandidateSource(written(text, form), "python", "model.py")
        timing = TimingOptions(tier="correctness", baseline="eager")
        result = await self.lab.evaluation.evaluator.evaluate(
            problem_id, source, device=self.options.device, timing=timing
        )
        return [str(result.verdict or result.status), result.reason[:300]]

    async def run(self) -> None:
        """Judge all that there is time for."""
        folder = self.options.kernelbench / "KernelBench"
        try:
            await asyncio.gather(*(self.file(path) for path in files(folder, self.options)))
        finally:
            await self.shrink.close()
            await self.forms.close()


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the counts as Markdown, and what is to be looked at."""
    first = Counter(reason_class(row["refused"][0]) for row in rows if row.get("refused"))
    taken = [row for row in rows if "verdicts" in row]
    mended = sum(1 for row in taken if row.get("refused"))
    lines = [
        f"{len(rows)} files: {len(taken) - mended} registered, {mended} refused and registered with a wish, "
        f"{len(rows) - len(taken)} refused or failed",
        "",
        *(f"- refused: {reason}: {count}" for reason, count in first.most_common()),
        "",
        "| ModelNew | judged | correct | incorrect | cheat | other |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for form in (SAME, *HONEST, *WRONG):
        said = Counter(row["verdicts"][form][0] for row in taken if form in row["verdicts"])
        known = [said.pop(name, 0) for name in ("correct", "incorrect", "cheat")]
        cells = [sum(known) + sum(said.values()), *known, sum(said.values())]
        lines.append(f"| {form}{' (wrong)' if form in WRONG else ''} | " + " | ".join(map(str, cells)) + " |")
    lines.append("")
    for row in rows:
        lines += [f"- {row['file']}: {row['failed']}"] if row.get("failed") else []
        for form, (verdict, reason) in row.get("verdicts", {}).items():
            if (verdict == "correct") == (form in WRONG):
                lines.append(f"- {row['file']}: {form}: {verdict}: {reason}; off {row.get('off', {}).get(form)}")
    return "\n".join(lines)


async def sweep(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run in a fresh laboratory."""
    from tests.laboratory import laboratory

    async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
        running = Sweep(options, lab)
        await running.run()
        return running.rows


def main() -> None:
    """Sweep and print the summary."""
    options = given()
    rows = asyncio.run(sweep(options))
    versions = "import torch; print(torch.__version__)"
    said = subprocess.run([options.judge_python, "-c", versions], capture_output=True, text=True, check=False).stdout
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {options.device}, torch {said.strip()}, Linux {platform.release()}")
    print(summary(rows))


if __name__ == "__main__":
    main()
