#!/usr/bin/env python3
"""Run this folder's measurements on a bare GPU machine without a network: on-gpu.md beside this file is its page.

python3 benchmarks/on_gpu.py prepare [--python 3.12]             # where there is a network
python3 benchmarks/on_gpu.py run --out DIR PART[.STEP][:K/N][=SECONDS]...     # there, by its Python with torch
python3 benchmarks/on_gpu.py list
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from gpu_parts import PARTS, Step  # noqa: E402 - it lies beside this file
from machine_setup import describe_machine, environment_of, prepare_folders  # noqa: E402 - likewise

GRACE_S = 15.0
"""From the kind word, SIGINT, to the end of all of a step's processes; of a short step a quarter at most."""
OWN_END_S = 15.0
"""Before that word a program that knows its seconds is to have ended."""
LEAST_S = 20.0
"""A step that has less left is not begun."""
TAIL_BYTES = 1200
"""Of each step's words, what is printed."""
ENDED = 124
"""Exit code of a step that its limit ended, as timeout(1) has it."""


@dataclass(frozen=True)
class Wish:
    """A part as the command line names it."""

    name: str
    shard: str
    seconds: float
    steps: "tuple[Step, ...]"

    @property
    def folder(self) -> str:
        """Return its folder below --out."""
        return self.name if self.shard == "1/1" else f"{self.name}-{self.shard.replace('/', 'of')}"


def wish_of(text: str) -> Wish:
    """Return the part that a word such as ablation:2/6=400 names, or the one step of verdicts.seconds.

    Raises:
        argparse.ArgumentTypeError: If there is no such part.
    """
    head, _, seconds = text.partition("=")
    head, _, shard = head.partition(":")
    name, _, step = head.partition(".")
    first, _, of = (shard or "1/1").partition("/")
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"There is no part {name!r}. Give one of {', '.join(PARTS)}.")
    if not (first.isdigit() and of.isdigit() and 1 <= int(first) <= int(of)):
        raise argparse.ArgumentTypeError(f"{shard} is no shard. Give one such as {name}:2/6.")
    if seconds and not seconds.isdigit():
        raise argparse.ArgumentTypeError(f"{seconds} is no number of seconds. Give one such as {name}=400.")
    steps = tuple(each for each in PARTS[name] if step in ("", each.name))
    if not steps:
        there = ", ".join(each.name for each in PARTS[name])
        raise argparse.ArgumentTypeError(f"{name} has no step {step!r}. Give one of {there}.")
    return Wish(name, shard or "1/1", float(seconds or sum(each.seconds for each in steps)), steps)


class Table:
    """DIR/parts.tsv: a row for each step as soon as it ends, then one for its part, whose code is the first bad one."""

    def __init__(self, out: Path) -> None:
        self._path = out / "parts.tsv"
        if not self._path.exists():
            self._path.write_text("part\tstep\tcode\tseconds\tremark\n", encoding="utf-8")

    def add(self, part: str, step: str, code: str, seconds: float, remark: str = "") -> None:
        """Append a row, and print it."""
        row = f"{part}\t{step}\t{code}\t{seconds:.0f}\t{remark}\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(row)
        print(row, end="", flush=True)


class Runner:
    """Runs parts one after the other, each within its own seconds."""

    def __init__(self, given: argparse.Namespace, environment: "dict[str, str]", end_s: float) -> None:
        self._given, self._environment, self._end = given, environment, end_s
        self._table = Table(given.out)

    def run_part(self, wish: Wish) -> bool:
        """Run the steps of a part, the next one also where one failed; return whether all ended well."""
        folder = self._given.out / wish.folder
        folder.mkdir(parents=True, exist_ok=True)
        begin, bad = time.monotonic(), ""
        end = min(begin + wish.seconds, self._end)
        for step in wish.steps:
            left = end - time.monotonic()
            limit = left if step is wish.steps[-1] else min(left, step.seconds)
            code = self._run_step(wish, step, folder, limit)
            bad = bad or ("" if code == "0" else code)
        self._table.add(wish.folder, "all", bad or "0", time.monotonic() - begin)
        return not bad

    def _run_step(self, wish: Wish, step: Step, folder: Path, limit: float) -> str:
        words = {
            "torch": self._given.torch_python, "out": str(folder), "case": str(self._given.case),
            "device": self._given.device, "shard": wish.shard,
            "seconds": f"{max(1, int(limit - grace_of(limit) - OWN_END_S))}",
        }  # fmt: skip
        why = step.refusal(self._given.device, self._given.case)
        if not why and limit < LEAST_S:
            why = f"{max(0.0, limit):.0f} s are left"
        if why:
            self._table.add(wish.folder, step.name, "-", 0, f"not run: {why}")
            return "-"
        argv, begin = step.argv(words), time.monotonic()
        log = folder / f"{step.name}.log"
        with log.open("ab") as file:
            file.write(f"$ {' '.join(argv)}\n".encode())
            file.flush()
            code = run_limited(argv, file, self._environment, limit)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            print(file.read().decode("utf-8", "replace"), flush=True)
        remark = f"ended at its limit of {limit:.0f} s" if code == ENDED else ""
        self._table.add(wish.folder, step.name, str(code), time.monotonic() - begin, remark)
        return str(code)


def grace_of(limit_s: float) -> float:
    """Return the seconds between a step's SIGINT and its limit."""
    return min(GRACE_S, limit_s / 4)


def run_limited(argv: "list[str]", log: object, environment: "dict[str, str]", limit_s: float) -> int:
    """Run a command in a session of its own; at its limit end it kindly, then all of it; return its exit code."""
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,  # type: ignore[arg-type]
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(limit_s - grace_of(limit_s))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_of(limit_s))
        return ENDED
    finally:
        with suppress(ProcessLookupError):  # what it left behind would take another step's time
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_parts(given: argparse.Namespace) -> int:
    """Set the machine up, run the parts, return the exit code: 1 if any step was not run or failed."""
    end = time.monotonic() + given.within_s
    given.out = given.out.resolve()
    given.case = given.case.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    asked = sum(wish.seconds for wish in given.parts)
    if asked > given.within_s:
        print(f"the parts ask for {asked:.0f} s, of {given.within_s:.0f}: the last ones get less", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-data-", ignore_cleanup_errors=True) as data:
        Path(data).chmod(0o711)  # jobs of a root server run under their own uid and must get through
        environment = environment_of(given.wheels, given.deb, given.torch_python, Path(data))
        about = given.out / "machine.json"
        if not about.exists():
            about.write_text(json.dumps(describe_machine(given, environment), indent=1) + "\n", encoding="utf-8")
        runner = Runner(given, environment, end)
        good = [runner.run_part(wish) for wish in given.parts]
    return 0 if all(good) else 1


def list_parts() -> None:
    """Print each part with its seconds and its steps."""
    for name, steps in PARTS.items():
        print(f"{name}: {sum(step.seconds for step in steps)} s")
        for step in steps:
            needs = f"  (needs .case/{step.needs})" if step.needs else ""
            print(f"  {step.seconds:>4} s  {step.name}: {step.command}{needs}")


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("list", help="parts, their steps and seconds")
    before = commands.add_parser("prepare", help="fill .whl and .deb; needs a network")
    before.add_argument("--python", default="3.12", help="version of the GPU machine's Python")
    run = commands.add_parser("run", help="run parts; needs no network")
    run.add_argument("parts", nargs="+", type=wish_of, metavar="PART[.STEP][:K/N][=SECONDS]")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: what can be tried without a GPU")
    run.add_argument("--within-s", type=float, default=3600.0, help="seconds for everything, the set-up included")
    run.add_argument("--torch-python", default=sys.executable, help="a Python with torch; this one if absent")
    run.add_argument("--commit", default="", help="of this checkout, where its .git is not there")
    for each in (before, run):
        each.add_argument("--wheels", type=Path, default=ROOT / ".whl")
        each.add_argument("--deb", type=Path, default=ROOT / ".deb")
        each.add_argument("--case", type=Path, default=ROOT / ".case")
    given = parser.parse_args()
    if given.what == "list":
        list_parts()
    elif given.what == "prepare":
        prepare_folders(given.python, given.wheels, given.deb, given.case)
    else:
        raise SystemExit(run_parts(given))


if __name__ == "__main__":
    main()
