"""A suite of many problems, interrupted by `kill -9` at random moments: is every problem done exactly once?

    .venv/bin/python benchmarks/recipes/suite_kills.py --problems 100 --kills 5

Each problem is a C program of its own (a GEAK task with an extractor), built by make, judged at tier smoke; the agent
is scripted and answers with the program that it was shown. The suite's command is killed after a random time, and
begun again, until it ends by itself.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PROGRAM = """#include <stdio.h>
#include <stdlib.h>
/* problem NUMBER */
int main(int argc, char **argv) {
    int n = atoi(argv[1]); unsigned s = atoi(argv[2]);
    FILE *out = fopen("out.bin", "wb");
    for (int i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        float y = (s >> 8) / 16777216.0f + NUMBER;
        fwrite(&y, 4, 1, out);
    }
    fclose(out);
    return 0;
}
"""
MAKEFILE = "TARGET = test\n\n$(TARGET): main.c\n\tgcc -O1 $< -o $@\n"
EXTRACTOR = """rtol = 1e-5
atol = 1e-6
run = ["./test", "{n}", "{seed}"]
cases = [{ n = 100 }]
outputs = [{ name = "y", source = "out.bin", format = "binary", dtype = "float32" }]
"""
PLAN = """name = "killed"
problem = "none"
language = "c"
tier = "smoke"
[agent]
command = ["/usr/bin/python3", "agent.py"]
files = { "agent.py" = "agent.py" }
"""
AGENT = """import json, sys
prompt = sys.stdin.read()
if "You write the specification" in prompt:
    print("```json\\n" + json.dumps({"operation": "numbers", "plan": ["as it is"]}) + "\\n```")
else:
    source = prompt.partition(" now:\\n\\n```")[2].partition("\\n")[2].partition("```")[0]
    print("anew\\n```c\\n" + source + "// anew\\n```")
"""


def lay(folder: Path, problems: int) -> None:
    """Write plan, agent and tasks."""
    (folder / "plan.toml").write_text(PLAN)
    (folder / "agent.py").write_text(AGENT)
    tasks: list[dict[str, str]] = []
    for number in range(problems):
        task = folder / f"t{number:03}"
        task.mkdir()
        (task / "main.c").write_text(PROGRAM.replace("NUMBER", str(number)))
        (task / "Makefile").write_text(MAKEFILE)
        (task / "extractor.toml").write_text(EXTRACTOR)
        tasks.append({"task": task.name, "instruction": "", "file_path": task.name, "file_name": "main.c"})
    (folder / "tasks.json").write_text(json.dumps(tasks))


async def interrupted(command: list[str], folder: Path, env: dict[str, str], kills: int, latest_s: float) -> list[Any]:
    """Run the suite until it ends by itself; kill it so often at random moments. Returns what each kill found."""
    found: list[Any] = []
    while True:
        running = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            limit = random.uniform(1.0, latest_s) if len(found) < kills else None
            out, _ = await asyncio.wait_for(running.communicate(), limit)
        except TimeoutError:
            running.send_signal(signal.SIGKILL)
            await running.wait()
            found.append({"after_s": round(limit or 0, 2), "problems_done": ended(folder / "data")})
            print(found[-1], flush=True)
            continue
        assert running.returncode == 0, f"the suite ended with {running.returncode}"
        return [*found, json.loads(out)]


def journals(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the journal of every run."""
    files = sorted((data / "recipes").glob("r-*/journal.jsonl"))
    return {f.parent.name: [json.loads(line) for line in f.read_bytes().split(b"\n")[:-1]] for f in files}


def ended(data: Path) -> int:
    """Return how many runs have their end in their journal."""
    return sum(any(entry["step"] == "end" for entry in lines) for lines in journals(data).values())


def counted(data: Path, problems: int) -> dict[str, Any]:
    """Return what was done how often."""
    lines = journals(data)
    steps = Counter((run, entry["step"]) for run, all_ in lines.items() for entry in all_ if entry["event"] == "done")
    jobs: dict[tuple[str, str], set[str]] = {}
    for run, all_ in lines.items():
        for entry in all_:
            if entry["event"] == "begun" and "job_id" in entry:
                jobs.setdefault((run, entry["step"]), set()).add(entry["job_id"])
    with sqlite3.connect(data / "lab.db") as db:
        rows = db.execute("SELECT batch_id, status FROM attempts WHERE kind = 'evaluate'").fetchall()
    judged = Counter(batch for batch, status in rows if status == "judged")
    return {
        "problems": problems,
        "runs that ended": ended(data),
        "steps done": len(steps),
        "steps done more than once": sum(times > 1 for times in steps.values()),
        "calls of the agent": len(jobs),
        "calls made under a second job": sum(len(ids) > 1 for ids in jobs.values()),
        "candidates judged": len(judged),
        "candidates judged more than once": sum(times > 1 for times in judged.values()),
        "attempts that a kill cut off": sum(status != "judged" for _, status in rows),
    }


def main() -> None:
    """Run it, print what was found as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--latest-s", type=float, default=40.0, help="a kill comes 1 to so many seconds after a start")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="suite-kills-"))
    folder.chmod(0o711)
    try:
        lay(folder, chosen.problems)
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(folder / "data"), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        command = [sys.executable, "-m", "gpu_mcp_server", "recipe", "suite", "hip", "plan.toml"]
        command += ["--instructions", "tasks.json", "--json"]
        began = time.monotonic()
        *kills, report = asyncio.run(interrupted(command, folder, env, chosen.kills, chosen.latest_s))
        took = time.monotonic() - began
        found = counted(folder / "data", chosen.problems)
        again = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
        same = json.loads(again.stdout) == report and counted(folder / "data", chosen.problems) == found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {took:.0f} s in all\n")
    for kill in kills:
        print(f"- killed {kill['after_s']} s after its start, with {kill['problems_done']} problems done")
    print("\n| what | number |\n| --- | --- |")
    for name, number in found.items():
        print(f"| {name} | {number} |")
    passed = report["fast"]["fast_0"]
    print(f"| problems whose best is correct | {passed['hits']} of {passed['of']} |")
    print(f"| the same command once more changed nothing | {'yes' if same else 'NO'} |")


if __name__ == "__main__":
    main()
