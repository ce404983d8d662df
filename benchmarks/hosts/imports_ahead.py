"""For how long evaluations hold their GPU on a host of several, with imports in their turn and ahead of it.

The GPUs exist only as locks, their driver is the tests' stand-in; hostd, broker, sandboxes, the judge and the imports
of torch and Triton are real. `python benchmarks/hosts/imports_ahead.py --python PYTHON-WITH-TORCH [--markdown FILE]`
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.hostd.gpus.broker_client import BrokerClient  # noqa: E402
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks  # noqa: E402
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobSpec, ProcessSpec, to_json  # noqa: E402
from gpu_mcp_server.services.evaluation.judge_files import judge_tree, role_source  # noqa: E402
from tests.hostd.laboratory import Laboratory  # noqa: E402
from tests.judge.harness import EXAMPLES, SOFTMAX, build  # noqa: E402
from tests.judge_package import JUDGE  # noqa: E402

STAND_IN = ROOT / "tests" / "judge"
LIMIT_S = 55.0
"""Of an evaluation: the broker learns from three how long they take, and until then believes this."""


def make_driver(folder: Path) -> None:
    """Build the stand-in of the driver."""
    kernels = re.sub(r"(?m)^#(include|pragma).*", "", (JUDGE / "devices/kernels.cu").read_text())
    (folder / "kernels_without_includes.h").write_text(kernels)
    for library, source in (("libcuda.so.1", "fake_cuda.cpp"), ("libnvidia-ml.so.1", "fake_nvml.cpp")):
        shutil.copy(STAND_IN / source, folder)
        command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, cwd=folder, check=True)
    folder.chmod(0o755)


def evaluation(lab: Laboratory, place: Path, python: str, *, ahead: bool) -> tuple[JobSpec, dict[str, bytes]]:
    """Return an evaluation whose reference and candidate import torch, one of them Triton too, and its files."""
    asked = {"device": "cuda", "mode": "judge", "tier": "smoke", "seed": secrets.token_hex(32)}
    task: dict[str, Any] = {**SOFTMAX, **asked}
    files = {
        "owner": {"task.json": json.dumps(task).encode()},
        "reference": {"reference.py": (EXAMPLES / "reference.py").read_bytes()},
        "candidate": {"candidate.so": build(place / "naive.c").read_bytes()},
    }
    imports = {"owner": (), "reference": ("torch",), "candidate": ("torch", "triton")}
    blobs = {hashlib.sha256(data).hexdigest(): data for own in files.values() for data in own.values()}
    refs = {
        role: tuple(FileRef(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in own.items())
        for role, own in files.items()
    }
    env = {"LD_LIBRARY_PATH": str(place / "driver")}
    ask = [python, "-c", "import sys; print(sys.prefix, sys.base_prefix, *sys.path, sep='\\n')"]
    said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    spec = lab.spec(
        processes=tuple(
            ProcessSpec(("judge", r), r, env, r == "owner", r, program=role_source(*imports[r]), python=python)
            for r in files
        ),
        links=(("owner", "reference"), ("owner", "candidate")),
        files=refs, trees=judge_tree("", blobs), outputs=("verdict.json",),
        roots=(str(place / "driver"), *sorted({path for path in said if Path(path).is_dir()} - {"/usr"})),
        gpus=GpuRequest(1, "exclusive", wait_s=600.0, ahead=ahead),
        limits={"wall_s": LIMIT_S, "memory_bytes": 4 << 30},
    )  # fmt: skip
    return spec, blobs


async def run(place: Path, options: argparse.Namespace, *, ahead: bool) -> dict[str, float]:
    """Have evaluations queue, and say for how long each held its GPU and how long all took."""
    os.environ.update(GPU_MCP_HOSTD_GPUS=str(place / "gpus.json"), GPU_MCP_HOSTD_LOCKS=str(place / f"locks-{ahead}"))
    own = {name: os.environ[name] for name in ("GPU_MCP_HOSTD_GPUS", "GPU_MCP_HOSTD_LOCKS")}
    few = {"GPU_MCP_HOSTD_SPARE_CORES": "1", "GPU_MCP_HOSTD_BROKER_IDLE_S": "1"}
    lab = await Laboratory.open(place / f"state-{ahead}", "full", {**own, **few})
    broker = BrokerClient.find_or_start(GpuLocks(own["GPU_MCP_HOSTD_LOCKS"]), lambda: False)
    assert broker is not None
    jobs: list[str] = []
    for _ in range(options.jobs):
        spec, blobs = evaluation(lab, place, options.python, ahead=ahead)
        listed = [[name, len(data)] for name, data in blobs.items()]
        await lab.link.call("submit", b"".join(blobs.values()), spec=to_json(spec), blobs=listed)
        jobs.append(spec.id)
    broker.close()
    records = [(await lab.wait(job, timeout_s=600.0)).record for job in jobs]
    await lab.close()
    assert all(record.status == "ok" for record in records), [(r.status, r.note) for r in records]
    moments = [(r.submitted_at or 0.0, r.started_at or 0.0, r.ended_at or 0.0) for r in records]
    held = [ended - started for _, started, ended in moments]
    whole = max(ended for *_, ended in moments) - min(submitted for submitted, *_ in moments)
    return {"held, median": statistics.median(held), "held, longest": max(held), "all": whole}


def main() -> None:
    """Run both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with NumPy, torch and Triton")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="gpu-mcp-imports-"))
    place.chmod(0o755)
    try:
        (place / "driver").mkdir()
        make_driver(place / "driver")
        (place / "gpus.json").write_text(json.dumps([{"uuid": f"GPU-{n}"} for n in range(options.gpus)]))
        source = (EXAMPLES / "naive.c").read_text()
        (place / "naive.c").write_text(source.replace("int64_t cols)", "int64_t cols, void *stream)"))
        found = {ahead: asyncio.run(run(place, options, ahead=ahead)) for ahead in (False, True)}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    lines = [
        f"{options.jobs} evaluations of tier `smoke` at once, {options.gpus} GPUs; {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}, "
        f"{datetime.now(UTC):%F}.",
        "",
        "| imports | GPU held, s, median | longest | all done after, s |",
        "| --- | ---: | ---: | ---: |",
    ]
    for ahead, row in found.items():
        words = ["ahead of the turn" if ahead else "in the turn", *(f"{value:.2f}" for value in row.values())]
        lines.append(f"| {' | '.join(words)} |")
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
