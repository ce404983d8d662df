"""Both stages of a program start few processes on GPUs: each start costs seconds of CUDA and NCCL."""

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.models.nccl_pipeline import NcclPipeline, NcclPipelineOptions
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.host_support import Install, NcclHost
from gpu_mcp_server.services.nccl.pipeline import Pipeline
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuild, NcclBuildResult, NcclRunResult, Run
from gpu_mcp_server.services.nccl.trial_programs import DIFFERENTIAL

HERE = Path(__file__).parents[2] / "nccl"
ALLTOALL = (HERE / "programs" / "alltoall.cu").read_text(encoding="utf-8")


class FourGpus:
    """A host that says it has four GPUs, whose builds are the stand-in, and whose runs are counted."""

    def __init__(self, lab: Lab, folder: Path, patch: pytest.MonkeyPatch, how: str = "good") -> None:
        self.how = how
        self.starts: list[str] = []
        self._jobs, self._folder = lab.nccl.verifier.jobs, folder
        self._run, self._describe = self._jobs.run, lab.nccl.verifier.hosts.describe_host
        patch.setattr(self._jobs, "run", self.run)
        patch.setattr(self._jobs, "build", self.build)
        patch.setattr(lab.nccl.verifier.hosts, "describe_host", self.describe_host)

    async def describe_host(self, name: str | None) -> NcclHost:
        host = await self._describe(name)
        gpus = [
            {"uuid": f"GPU-{i}", "name": "H100", "arch": "sm_90", "nvlink": [f"GPU-{k}" for k in range(4) if k != i]}
            for i in range(4)
        ]
        checker = self._folder / "compute-sanitizer"
        if not checker.exists():
            checker.write_text("#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n")
            checker.chmod(0o755)
            self._folder.chmod(0o755)
        tools = {checker.name: Tool(path=str(checker), version="1", roots=[str(self._folder)])}
        probe = host.probe.model_copy(
            update={"gpus": gpus, "toolchains": host.probe.toolchains.model_copy(update={"tools": tools})}
        )
        install = Install(include="/x", library="/x/libnccl.so.2", header="2.28.9", runtime="2.28.9", device_api=True)
        return replace(host, probe=probe, install=install)

    async def build(self, host: NcclHost, builds: Sequence[NcclBuild]) -> list[NcclBuildResult]:
        return [self._built(b) for b in builds]

    def _built(self, build: NcclBuild) -> NcclBuildResult:
        defines = [f'-DDIFFERENTIAL="{self.how}"'] if build.main == DIFFERENTIAL else []
        out = self._folder / f"program-{len(defines)}"
        if not out.exists():
            subprocess.run(["gcc", "-o", str(out), *defines, str(HERE / "standin.c")], check=True)
        kind = "late" if "GMCP_LATE" in build.defines and defines else "differential" if defines else build.main
        return NcclBuildResult(out.read_bytes() + kind.encode(), "ok", (), 0.1, "")

    async def run(self, host: NcclHost, run: Run) -> NcclRunResult:
        checker = [Path(run.before[0]).name] if run.before else []
        arguments = [] if checker else run.launch.arguments[:2]  # without the seed
        self.starts.append(" ".join([*checker, *arguments, *run.env]))
        return await self._run(host, replace(run, gpus=0))


async def taken(lab: Lab, folder: Path) -> tuple[NcclPipeline, list[str]]:
    told: list[str] = []

    async def tell(text: str) -> None:
        told.append(text)

    pipeline = Pipeline(lab.nccl.verifier, lab.store.experience)
    options = NcclPipelineOptions(ranks=4)
    return await pipeline.run({"p.cu": ALLTOALL}, "p.cu", folder / "out", options, progress=tell), told


async def test_both_stages_start_nine_jobs_and_a_check_is_told_as_soon_as_it_ends(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gpus = FourGpus(lab, tmp_path, monkeypatch)
    result, told = await taken(lab, tmp_path)

    assert result.status == "verified", result.summary()
    assert Counter(gpus.starts) == {
        "": 3,  # the program of each stage, and the original once for both
        "GMCP_STRESS": 2,
        "GMCP_STRESS GMCP_SILENT": 1,
        "4 check,check,silent,time": 1,
        "4 check": 1,
        "compute-sanitizer": 1,
    }
    checks = [line.removeprefix("check ").partition(",")[0] for line in told if line.startswith("check ")]
    first, second = checks[: checks.index("timing: noted") + 1], checks[checks.index("timing: noted") + 1 :]
    assert sorted(first) == [
        "counters: noted", "differential: passed", "run: passed", "stress: passed", "timing: noted"
    ]  # fmt: skip
    assert sorted(second[:-1]) == [
        *("counters: passed", "differential: passed", "negative control: passed", "run: passed"),
        *("stress: passed", "timing: passed"),
    ]
    assert second[-1] == "memcheck: passed"


async def test_a_part_that_dies_as_it_is_timed_fails_the_program(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    FourGpus(lab, tmp_path, monkeypatch, "dies-in-time")
    result, told = await taken(lab, tmp_path)

    assert result.status == "failed", result.summary()
    assert any("timing: 1 of 1 ranks failed: rank 0: exit 3" in step.reason for step in result.steps), result.summary()
    assert "check memcheck: passed" in "\n".join(told)
