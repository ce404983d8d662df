"""The pipeline: every step recorded, none done twice for the same inputs, nothing of the user's overwritten."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpu_mcp_server.cli.app import app
from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.nccl_pipeline import NcclPipeline, NcclPipelineOptions
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.pipeline import RECORD, Pipeline

PROGRAM = """#include <cuda_runtime.h>
#include <nccl.h>
#include <cstdio>
int main() {
  ncclComm_t comm;
  cudaStream_t stream;
  float *send, *recv, got = 0;
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  cudaStreamCreate(&stream);
  cudaMalloc(&send, 4096);
  cudaMalloc(&recv, 4096);
  for (int i = 0; i < 20; i++) ncclAllReduce(send, recv, 1024, ncclFloat, ncclSum, comm, stream);
  cudaStreamSynchronize(stream);
  cudaMemcpy(&got, recv, sizeof(got), cudaMemcpyDeviceToHost);
  printf("Verification: %s\\n", got == 0 ? "PASS" : "FAIL");
  cudaFree(send);
  cudaFree(recv);
  ncclCommDestroy(comm);
}
"""
STATIC = NcclPipelineOptions(until="static")
STEPS = ["analyze", "original", "windows and device communicator", "verify stage A", "kernels", "verify stage B"]


async def run(lab: Lab, folder: Path, text: str = PROGRAM, options: NcclPipelineOptions = STATIC) -> NcclPipeline:
    return await Pipeline(lab.nccl.verifier, lab.store.experience).run({"p.cu": text}, "p.cu", folder, options)


def reused(result: NcclPipeline) -> list[bool]:
    return [s.reused for s in result.steps]


async def test_each_step_is_an_attempt_with_time_and_reason_and_is_done_once(lab: Lab, tmp_path: Path):
    first = await run(lab, tmp_path / "out")
    again = await run(lab, tmp_path / "out")

    assert [s.name for s in first.steps] == STEPS and reused(first) == [False] * 6
    assert reused(again) == [True] * 6 and again.status == first.status == "incomplete"
    for step in first.steps:
        attempt = await lab.store.experience.get(step.attempt_id or "")
        assert attempt.kind == "nccl" and step.reason and step.at
    assert "ncclx::AllReduce(send, recv" in (tmp_path / "out" / "stage_b" / "p.device.cu").read_text()
    assert "ncclAllReduce(send, recv" in (tmp_path / "out" / "stage_a" / "p.device.cu").read_text()
    assert first.main == "stage_b/p.device.cu"
    assert "done before" in again.summary()


async def test_what_changed_is_done_anew_and_what_vanished_too(lab: Lab, tmp_path: Path):
    await run(lab, tmp_path)
    (tmp_path / "stage_b.diff").unlink()
    without = await run(lab, tmp_path)
    changed = await run(lab, tmp_path, PROGRAM.replace("4096", "8192"))
    once_more = await run(lab, tmp_path, PROGRAM.replace("4096", "8192"), STATIC.model_copy(update={"again": True}))

    assert reused(without) == [True, True, True, True, False, True]
    assert reused(changed) == reused(once_more) == [False] * 6


async def test_an_interrupted_run_goes_on_where_it_ended(lab: Lab, tmp_path: Path):
    async def stop(step: str) -> None:
        if step == "kernels":
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Pipeline(lab.nccl.verifier, lab.store.experience).run(
            {"p.cu": PROGRAM}, "p.cu", tmp_path, STATIC, progress=stop
        )
    (tmp_path / "stage_b.new").write_text("half")

    assert reused(await run(lab, tmp_path)) == [True, True, True, True, False, False]


async def test_a_broken_record_counts_as_none(lab: Lab, tmp_path: Path):
    (tmp_path / RECORD).write_text('{"steps": [{"name": 3}]')

    assert reused(await run(lab, tmp_path)) == [False] * 6


async def test_without_collectives_nothing_is_made(lab: Lab, tmp_path: Path):
    result = await run(lab, tmp_path / "out", "#include <nccl.h>\nint main() { return 0; }\n")

    assert result.status == "nothing to transform"
    assert [s.name for s in result.steps] == ["analyze"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == [RECORD]
    assert (await run(lab, tmp_path / "out", "#include <nccl.h>\nint main() { return 0; }\n")).status == result.status


async def test_a_program_that_does_not_compile_today_is_told_so_and_left(lab: Lab, tmp_path: Path):
    host = await lab.nccl.verifier.hosts.describe_host(None)
    if host.probe.nvcc is None or host.install is None:
        pytest.skip("needs nvcc, and NCCL with headers: pip install --group toolchains")
    result = await run(lab, tmp_path, PROGRAM.replace("float *send", "flaot *send"), NcclPipelineOptions(until="build"))

    assert result.status == "failed" and [s.name for s in result.steps] == STEPS[:2]
    assert 'it does not compile today: failed: p.cu:7: error: identifier "flaot" is undefined' in result.headline


async def test_what_is_no_program_is_refused(lab: Lab, tmp_path: Path):
    with pytest.raises(BadRequest, match=r"no CUDA or C\+\+ source"):
        await Pipeline(lab.nccl.verifier, lab.store.experience).run({"p.py": "print()"}, "p.py", tmp_path)


def test_the_command_leaves_the_file_and_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_DATA_DIR", str(tmp_path / "data"))
    file = tmp_path / "p.cu"
    file.write_text(PROGRAM)
    done = CliRunner().invoke(app, ["nccl", "run", str(file), "--until", "static", "--json"])

    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert [s["name"] for s in said["steps"]] == STEPS
    assert file.read_text() == PROGRAM
    assert (tmp_path / "p.cu.nccl" / "stage_b" / "p.device.cu").is_file()
    refused = CliRunner().invoke(app, ["nccl", "run", str(file), "--until", "never"])
    assert refused.exit_code == 2 and "until" in refused.output
