"""Verification on this machine: real NCCL headers, library and nvcc where there are some, no GPU needed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.nccl_check import NcclRunOptions
from gpu_mcp_server.models.nccl_pipeline import NcclPipelineOptions
from gpu_mcp_server.models.transform import Api
from gpu_mcp_server.nccl.checks import instrument, kernels
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.stages.transformation import transform
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.host_support import Install, NcclHost, supported_stages
from gpu_mcp_server.services.nccl.pipeline import chosen_api
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuild, ProgramLaunch
from gpu_mcp_server.services.nccl.trial_programs import VerifiedProgram, blocking_is_safe, builds

HERE = Path(__file__).parents[2] / "nccl"
EXCHANGE = (HERE / "clean" / "exchange.cu").read_text(encoding="utf-8")
HOST = (HERE / "clean" / "host.cu").read_text(encoding="utf-8")
SEVERAL = """#include <cuda_runtime.h>
#include <nccl.h>
void step(float* a, float* b, ncclComm_t comm, cudaStream_t s);
int main() {
  ncclComm_t comm;
  ncclUniqueId id;
  cudaStream_t s;
  float *a, *b;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  cudaStreamCreate(&s);
  cudaMalloc(&a, 64);
  cudaMalloc(&b, 64);
  for (int i = 0; i < 3; i++) step(a, b, comm, s);
  cudaStreamSynchronize(s);
  cudaFree(a);
  cudaFree(b);
  ncclCommDestroy(comm);
}
"""
GPU = {"uuid": "GPU-a", "name": "H200", "arch": "sm_90", "nvlink": ["GPU-b"]}
PEER = {**GPU, "uuid": "GPU-b", "nvlink": ["GPU-a"]}


@pytest.fixture(scope="module")
async def host(lab: Lab) -> NcclHost:
    found = await lab.nccl.verifier.hosts.describe_host(None)
    if found.probe.nvcc is None or found.install is None:
        pytest.skip("needs nvcc, and NCCL with headers: pip install --group toolchains")
    return found


async def test_without_gpus_everything_up_to_the_build_is_checked_and_the_rest_says_why_not(lab: Lab, host: NcclHost):
    said = await lab.nccl.verifier.verify({"main.cu": HOST}, "main.cu")
    by_name = {c.name: c for c in said.checks}

    assert by_name["versions"].status == by_name["build"].status == "passed"
    assert by_name["versions"].evidence.startswith(f"header {host.install.header if host.install else ''}, library ")
    if host.gpus < 2:
        assert said.verdict == "incomplete" and "run" in said.missing
        assert "2 GPUs are needed" in by_name["stress"].evidence
        assert "runs need two with NVLink" in said.possible
    attempt = await lab.store.experience.get(said.attempt_id or "")
    assert attempt.kind == "nccl" and attempt.verdict == said.verdict


async def test_a_verification_outlives_its_call_and_the_same_call_again_joins_it(lab: Lab, host: NcclHost):
    made = await lab.store.workspaces.write(None, {"main.cu": HOST})
    at_once, waiting = (NcclRunOptions(wait_s=s, until="build", host=host.host) for s in (0, 240))
    first = await lab.nccl.verifier.verify_workspace(made.workspace_id, "main.cu", options=at_once)
    assert first.verdict == "running" and "the same call again" in first.summary()
    done = await lab.nccl.verifier.verify_workspace(made.workspace_id, "main.cu", options=waiting)

    assert done.verdict == "incomplete" and done.attempt_id
    assert (await lab.store.experience.get(done.attempt_id)).verdict == "incomplete"


async def test_what_does_not_compile_is_a_failed_build_and_nothing_runs(lab: Lab, host: NcclHost):
    text = "int main() {\n  flaot x;\n}\n"
    said = await lab.nccl.verifier.verify({"main.cu": text}, "main.cu")
    by_name = {c.name: c for c in said.checks}

    assert said.verdict == "failed" and by_name["build"].status == "failed"
    assert 'main.cu:2: error: identifier "flaot" is undefined' in by_name["build"].evidence
    assert by_name["run"].status == "skipped"


async def test_static_rules_alone_need_no_compiler_and_a_broken_one_fails(lab: Lab):
    text = (HERE / "faults" / "no_last_barrier.cu").read_text(encoding="utf-8")
    said = await lab.nccl.verifier.verify({"main.cu": text}, "main.cu", options=NcclRunOptions(until="static"))

    assert said.verdict == "failed"
    assert said.summary().startswith("failed: barriers; not run: versions, build, run")
    assert "main.cu:23: exchange: no barrier after the last access to peers" in said.summary()


async def test_the_stress_build_compiles_and_keeps_the_lines(lab: Lab, host: NcclHost):
    program = ProgramModel.read({"main.cu": EXCHANGE}, "main.cu")
    made = instrument.instrument_program(program, kernels.communicating(program))
    moved = made.files["main.cu"].replace("unsigned long long *bad, wrong", "unsigned *bad; int wrong = __LINE__; int")
    (built,) = await lab.nccl.verifier.jobs.build(host, [NcclBuild(made.files, "main.cu", ("GMCP_LATE",))])

    assert made.left_out == []
    assert built.binary is not None, built.log
    line = 1 + EXCHANGE[: EXCHANGE.index("unsigned long long *bad, wrong")].count("\n")
    directive = next(n for n, text in enumerate(moved.split("\n")) if text.startswith("#line "))
    start = int(moved.split("\n")[directive].split()[1])
    assert moved.split("\n")[directive + 1 + line - start].count("wrong = __LINE__") == 1


async def test_what_is_no_program_is_refused_with_what_there_is(lab: Lab):
    with pytest.raises(BadRequest, match=r"no text file 'x\.cu'"):
        await lab.nccl.verifier.verify({"main.cu": EXCHANGE}, "x.cu")
    with pytest.raises(BadRequest, match=r"no CUDA or C\+\+ source"):
        await lab.nccl.verifier.verify({"main.py": "print()"}, "main.py")


INSTALL = Install("/i", "/l/libnccl.so.2", "2.28.9", "2.28.9", True)


@pytest.mark.parametrize(
    ("install", "gpus", "words"),
    [
        (None, [], "static rules only"),
        (replace(INSTALL, header="2.26.2", runtime="2.26.2"), [], "has no windows"),
        (replace(INSTALL, header="2.27.7", runtime="2.27.7", device_api=False), [GPU, PEER], "has no device interface"),
        (replace(INSTALL, runtime="2.28.3"), [GPU, PEER], "header 2.28.9 and library 2.28.3 differ"),
        (INSTALL, [], "no GPU here"),
        (INSTALL, [GPU], "one GPU here"),
        (INSTALL, [{**GPU, "nvlink": []}, {**PEER, "nvlink": []}], "none reaches another by NVLink"),
        (INSTALL, [GPU, PEER], "everything with LSA on 2 GPUs; GIN is compiled only"),
    ],
)
async def test_each_host_is_told_which_stages_it_can_run(
    lab: Lab, install: Install | None, gpus: list[object], words: str
):
    probe = (await lab.jobs.runner.probe("local")).model_copy(update={"gpus": gpus})

    assert words in supported_stages(NcclHost("local", probe, install, (), (), ()))


@pytest.mark.parametrize(
    ("api", "gpus", "header", "chosen"),
    [
        ("auto", [GPU, PEER], "2.28.9", "auto"),
        ("auto", [{**GPU, "nvlink": []}, {**PEER, "nvlink": []}], "2.28.9", "gin"),
        ("auto", [{**GPU, "nvlink": []}, {**PEER, "nvlink": []}], "2.28.3", "auto"),
        ("lsa", [{**GPU, "nvlink": []}, {**PEER, "nvlink": []}], "2.28.9", "lsa"),
        ("auto", [], "2.28.9", "auto"),
    ],
)
async def test_gin_is_generated_where_gpus_do_not_share_nvlink(
    lab: Lab, api: Api, gpus: list[object], header: str, chosen: str
):
    probe = (await lab.jobs.runner.probe("local")).model_copy(update={"gpus": gpus})
    host = NcclHost("box", probe, replace(INSTALL, header=header, runtime=header), (), (), ())

    assert chosen_api(NcclPipelineOptions(api=api), host) == chosen


def test_a_program_with_several_gpus_in_one_thread_never_runs_with_blocking_launches():
    several = (HERE / "clean" / "helpers.cu").read_text(encoding="utf-8")

    assert blocking_is_safe(ProgramModel.read({"m.cu": EXCHANGE}, "m.cu"))
    assert not blocking_is_safe(ProgramModel.read({"m.cu": several}, "m.cu"))
    block = {"m.cu": '#include "ncclx.cuh"\n' + EXCHANGE, "ncclx.cuh": "inline void f() { ncclGroupStart(); }\n"}
    assert blocking_is_safe(ProgramModel.read(block, "m.cu")), "the generated block's groups are no threads"


def test_the_differential_program_is_built_for_the_collectives_that_are_used():
    host = "int main() { for (;;) { ncclx::AllReduce(a, a, n, ncclFloat, ncclSum, comm, stream); } }"
    files = {
        "main.cu": '#include "ncclx.cuh"\n' + host,
        "ncclx.cuh": '#include "ncclx_kernels.cuh"\n',
        "ncclx_kernels.cuh": EXCHANGE,
    }
    found = builds(VerifiedProgram(ProgramModel.read(files, "main.cu"), None, ProgramLaunch()))

    assert set(found) == {"plain", "stress", "differential", "late"}
    assert found["differential"].defines == ("CHECK_ALLREDUCE",)
    assert found["late"].files["ncclx_kernels.cuh"].count("gmcp::late(devComm.lsaRank)") == 1
    assert "gmcp::late" not in found["differential"].files["ncclx_kernels.cuh"]


async def test_a_program_of_several_units_is_transformed_and_linked(lab: Lab, host: NcclHost):
    step = "#include <nccl.h>\nvoid step(float* a, float* b, ncclComm_t comm, cudaStream_t s) {\n  %s}\n"
    step %= "ncclAllReduce(a, b, 16, ncclFloat, ncclSum, comm, s);\n"
    files = {"main.cc": SEVERAL, "step.cc": step}
    result, made = transform(files, "main.cc")
    # Tests of the transformation compile every type's kernels, which here would be compiled eight times.
    few = re.sub(r"(?m)^ +case nccl(?!Float32).*\n", "", made["ncclx_kernels.cuh"])
    assert few.count("case ncclFloat32:") == 3 and len(few) < len(made["ncclx_kernels.cuh"])
    said = await lab.nccl.verifier.verify(
        {**files, **made, "ncclx_kernels.cuh": few},
        str(result.main),
        original="main.cc",
        options=NcclRunOptions(until="build"),
    )
    by_name = {c.name: c for c in said.checks}

    assert set(made) == {"main.device.cu", "step.device.cu", "ncclx.cuh", "ncclx_kernels.cuh"}
    assert "main.device.cu step.device.cu -o" in str(result.build)
    assert by_name["build"].status == "passed", by_name["build"].evidence
