"""Five NCCL programs through the pipeline, and planted faults through verify_nccl, on a machine with two GPUs.

`python benchmarks/nccl/two_gpus.py [--until static|build|run|all]` prints two tables. Some need mpirun.
For each fault it says which check caught it. Without two GPUs it still shows what rules and builds tell.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.nccl.mutations import CLEAN, mutated  # noqa: E402 - found from the root only

PROGRAMS = {
    "alltoall.cu": "self",
    "allreduce.cu": "self",
    "sendrecv.cu": "self",
    "threads.cu": "self",
    "mpi.cu": "mpirun",
}
LIMIT_S = 90


def command_output(arguments: list[str], until: str) -> dict[str, object]:
    """Return what a command of `nccl` says as JSON, or its last words as `headline`."""
    command = [sys.executable, "-m", "gpu_mcp_server", "nccl", *arguments]
    command += ["--until", until, "--timeout", str(LIMIT_S), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    try:
        return json.loads(ended.stdout)
    except json.JSONDecodeError:
        return {"headline": (ended.stderr.strip().splitlines() or ["no words"])[-1]}


def print_programs(folder: Path, until: str) -> None:
    """Take each program to the device in a folder that has it alone."""
    print("| program | status | steps | s |\n| --- | --- | --- | --- |")
    for name, launcher in PROGRAMS.items():
        place = folder / name.removesuffix(".cu")
        place.mkdir()
        (place / name).write_bytes((ROOT / "tests/nccl/programs" / name).read_bytes())
        began = time.monotonic()
        said = command_output(["run", str(place / name), "--launcher", launcher], until)
        steps = said.get("steps")
        listed = [f"{s['name']}: {s['status']}" for s in steps] if isinstance(steps, list) else [str(said["headline"])]
        print(
            f"| {name} | {said.get('status', '?')} | {'; '.join(listed)} | {time.monotonic() - began:.0f} |", flush=True
        )


def print_faults(folder: Path, until: str) -> None:
    """Verify the right program, then each with one fault; those by GIN need an RDMA NIC and are left out."""
    print("\n| fault | verdict | failed checks | s |\n| --- | --- | --- | --- |")
    texts = {"none": (CLEAN / "mutated_lsa.cu").read_text("utf-8")}
    texts |= {name: text for name, text in mutated().items() if name.startswith(("lsa: ", "pull: "))}
    for number, (name, text) in enumerate(texts.items()):
        place = folder / f"fault{number}"
        place.mkdir()
        (place / "main.cu").write_text(text, "utf-8")
        began = time.monotonic()
        said = command_output(["verify", str(place / "main.cu"), "--launcher", "mpirun"], until)
        checks = said.get("checks")
        failed = (
            [c["name"] for c in checks if c["status"] == "failed"]
            if isinstance(checks, list)
            else [str(said["headline"])]
        )
        row = (
            f"| {name} | {said.get('verdict', '?')} | {', '.join(failed) or 'none'} | {time.monotonic() - began:.0f} |"
        )
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", default="all", choices=["static", "build", "run", "all"])
    until = parser.parse_args().until
    with tempfile.TemporaryDirectory() as folder:
        print_programs(Path(folder), until)
        print_faults(Path(folder), until)


if __name__ == "__main__":
    main()
