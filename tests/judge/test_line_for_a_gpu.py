"""A judge's job on a real hostd that waits for its GPU: the GPU is a lock, its driver the fake, all else is real."""

import asyncio
import hashlib
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd.gpus.broker_client import broker_status
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobSpec, ProcessSpec, to_json
from gpu_mcp_server.services.evaluation.judge_files import judge_tree, role_source
from tests.hostd.conftest import skip_unless
from tests.hostd.laboratory import Laboratory
from tests.judge.harness import EXAMPLES, SOFTMAX, build
from tests.judge.test_candidates_cuda_fake import with_stream

pytestmark = pytest.mark.anyio
PYTHON = sorted(
    {sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("site-packages"))} - {"/usr"}
)
"""Folders of this interpreter and its modules."""
ALONE = GpuRequest(1, "exclusive", wait_s=60.0)


@pytest.fixture
def place():
    """Return a folder that every uid can look into."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-line-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def lab(place: Path) -> AsyncIterator[Laboratory]:
    (place / "gpus.json").write_text('[{"uuid": "GPU-0"}]')
    own = {"GPU_MCP_HOSTD_GPUS": place / "gpus.json", "GPU_MCP_HOSTD_LOCKS": place / "locks"}
    few = {"GPU_MCP_HOSTD_SPARE_CORES": "1", "GPU_MCP_HOSTD_BROKER_IDLE_S": "0.1"}
    found = await Laboratory.open(place / "state", "full", {**{name: str(path) for name, path in own.items()}, **few})
    skip_unless(found, "full")
    yield found
    await found.close()


async def submitted(lab: Laboratory, driver: Path, place: Path, mode: str) -> str:
    """Submit a job on the fake GPU whose processes may start in line, `judge` or `register`; return its id."""
    shutil.copytree(driver, place / "driver")
    (place / "driver").chmod(0o755)
    (place / "naive.c").write_text(with_stream("naive.c"))
    task: dict[str, Any] = {
        **SOFTMAX,
        "device": "cuda",
        "mode": mode,
        "tier": "smoke",
        "seed": secrets.token_hex(32),
    }
    files = {
        "owner": {"task.json": json.dumps(task).encode()},
        "reference": {"reference.py": (EXAMPLES / "reference.py").read_bytes()},
    }
    if mode == "judge":
        files["candidate"] = {"candidate.so": build(place / "naive.c").read_bytes()}
    blobs: dict[str, bytes] = {}
    refs: dict[str, tuple[FileRef, ...]] = {}
    for role, own in files.items():
        for name, data in own.items():
            blobs[sha256 := hashlib.sha256(data).hexdigest()] = data
            refs[role] = (FileRef(name, sha256, len(data)),)
    env = {"LD_LIBRARY_PATH": str(place / "driver"), "CUDA_FAKE_CONTEXTS": "/job/contexts"}
    spec: JobSpec = lab.spec(
        processes=tuple(
            ProcessSpec(("judge", r), r, env, r == "owner", r, program=role_source(), python=sys.executable)
            for r in files
        ),
        links=tuple(("owner", role) for role in files if role != "owner"),
        files=refs,
        trees=judge_tree("", blobs),
        outputs=("verdict.json", "contexts"),
        roots=(str(place / "driver"), *PYTHON),
        gpus=GpuRequest(1, "exclusive", wait_s=300.0, ahead=True),
        limits={"wall_s": 300.0, "memory_bytes": 4 << 30},
    )
    listed = [[name, len(data)] for name, data in blobs.items()]
    answer, _ = await lab.link.call("submit", b"".join(blobs.values()), spec=to_json(spec), blobs=listed)
    assert answer == {"claimed": True}
    return spec.id


@pytest.mark.parametrize("mode", ["judge", "register"])
async def test_a_job_in_line_imports_and_makes_its_contexts_in_its_turn(
    lab: Laboratory, driver: Path, place: Path, mode: str
):
    long = {"wall_s": 600.0}
    holder = await lab.start("/bin/sh", "-c", "echo on; sleep 600", until=b"on", gpus=ALONE, limits=long)
    job = await submitted(lab, driver, place, mode)
    seen = [""]
    while not seen[-1].startswith("GPU-0 is held"):
        shown: Any = broker_status(GpuLocks(str(place / "locks"))).get("waiting", [])
        seen += [request["why"] for request in shown]
        await asyncio.sleep(0.01)
    before = list((place / "state").rglob("contexts"))
    await lab.link.call("cancel", job=holder)
    done = await lab.wait(job, timeout_s=300.0)

    assert seen[1].startswith("its own processes are not ready; GPU-0 is held by")
    assert before == []
    assert done.record.status == "ok", (done.record, done.stderr)
    assert {out.path for out in done.record.outputs} == {"contexts", "verdict.json"}
