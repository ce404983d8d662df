"""Import every task of public suites, as published, and say which were refused and why.

    python benchmarks/suites/import_suites.py FOLDER... [--max-bytes N] [--task-s S] [--out FILE.json]

FOLDER is a copy of a suite's repository; nothing of it is kept here. Without a GPU `--max-bytes` leaves the cases out
whose tensors take more: what is told is then how many tasks import on that machine. FILE is written after each task.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.problem import ImportOverrides
from gpu_mcp_server.recipes.suite_candidates import suite_tasks
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.detect import source_at
from gpu_mcp_server.settings.server_settings import load_settings


async def import_all(lab: Lab, paths: list[Path], given: argparse.Namespace, into: dict[str, Any]) -> None:
    """Import each task; note what it became."""
    wish = ImportOverrides(accept_degenerate=True, max_bytes=given.max_bytes)
    for path in paths:
        began = time.monotonic()
        said: dict[str, Any] = {}
        try:
            async with asyncio.timeout(given.task_s):
                source = replace(await source_at(path), wish=wish)
                info = await lab.evaluation.registry.import_file(source)
            said = {"problem_id": info.problem_id, "shapes": len(info.shapes), "notes": info.notes}
        except GpuMcpError as error:
            said = {"refused": str(error)[:1200]}
        except TimeoutError:
            said = {"refused": f"not done in {given.task_s:g} s"}
        except Exception as error:
            said = {"refused": f"BUG {type(error).__name__}: {error}"[:1200]}
        said["seconds"] = round(time.monotonic() - began, 1)
        into[str(path)] = said
        if given.out:
            given.out.write_text(json.dumps(into, indent=1))
        told = said.get("problem_id") or " ".join(said["refused"].split())[-230:]
        print(f"{path.parent}: {told}  ({said['seconds']} s)", flush=True)


async def main() -> None:
    """Import, count, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--task-s", type=float, help="seconds that a task may take; no limit if absent")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as data:
        await asyncio.to_thread(Path(data).chmod, 0o711)
        async with Lab.open(load_settings(data_dir=Path(data), index_documentation=False)) as lab:
            for folder in given.folders:
                paths = list(suite_tasks(folder).values())
                await import_all(lab, paths, given, found)
                mine = [found[str(path)] for path in paths]
                kept = sum("problem_id" in each for each in mine)
                print(f"{folder.name}: tried {len(mine)}, imported {kept}, refused {len(mine) - kept}")
                for why, often in Counter(each["refused"][:100] for each in mine if "refused" in each).most_common():
                    print(f"  {often} x {why}")


if __name__ == "__main__":
    asyncio.run(main())
