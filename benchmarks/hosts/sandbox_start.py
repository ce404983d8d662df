"""Time a job's wait for its sandbox: `true` in one made for it and in one that waited, two checkouts by turns.

    python benchmarks/hosts/sandbox_start.py OTHER_CHECKOUT [--rounds N] [--level full]

Each checkout runs by its own .venv. The two take turns in rounds of ten jobs of each kind, so that a busy machine
slows both. Prints medians, quartiles and the difference; asserts nothing.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
JOBS = 10


async def measure(level: str) -> dict[str, list[float]]:
    """Return milliseconds of jobs, from the submission to the record."""
    sys.path.insert(0, str(Path.cwd()))
    from tests.hostd.laboratory import Laboratory

    found: dict[str, list[float]] = {"cold": [], "prewarmed": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        await asyncio.to_thread(Path(folder).chmod, 0o711)
        lab = await Laboratory.open(Path(folder) / "state", level)
        for kind in ("cold", "prewarmed"):
            for number in range(JOBS + 2):
                if kind == "prewarmed":
                    await lab.warm_up() if not number else await lab.until_warm()
                # nothing is made ahead with a /tmp of another size
                spec = lab.spec("true", limits={"tmp_bytes": (64 << 20) - 4096} if kind == "cold" else {})
                began = time.perf_counter()
                await lab.submit(spec)
                done = await lab.wait(spec.id)
                took_ms = (time.perf_counter() - began) * 1e3
                assert done.record.status == "ok", done.record
                if number >= 2:
                    found[kind].append(took_ms)
        await lab.close()
    return found


def run(checkout: Path, level: str) -> dict[str, list[float]]:
    """Measure one round in a checkout."""
    command = [checkout / ".venv/bin/python", Path(__file__), "--measure", "--level", level]
    said = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def shown(samples: list[float]) -> str:
    """Return median and quartiles."""
    low, median, high = statistics.quantiles(samples, n=4)
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--level", default="full")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(measure(given.level))))
        return
    checkouts = {"other": given.other.resolve(), "this": ROOT}
    samples: dict[str, Any] = {name: {"cold": [], "prewarmed": []} for name in checkouts}
    for number in range(given.rounds):
        for name in sorted(checkouts, reverse=number % 2 == 0):
            for kind, values in run(checkouts[name], given.level).items():
                samples[name][kind] += values
    print(f"level {given.level}, {os.cpu_count()} cores, Linux {platform.release()}, {given.rounds} rounds of {JOBS}")
    print("| sandbox | other, ms | this, ms | median of this less other, ms |")
    print("| --- | --- | --- | --- |")
    for kind in ("cold", "prewarmed"):
        other, this = samples["other"][kind], samples["this"][kind]
        less = statistics.median(this) - statistics.median(other)
        print(f"| {kind} | {shown(other)} | {shown(this)} | {less:+.2f} |")


if __name__ == "__main__":
    main()
