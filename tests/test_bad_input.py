"""Bad input gets a clear answer, and nothing is lost; more of it: judge/test_after_bad_ones.py."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client

from gpu_mcp_server.services.evaluation import crash_stacks, judge_job
from tests.laboratory import HONEST, PROBLEM, Folder, called, client_of, refused

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
HEAD = "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <signal.h>\n#include <math.h>\n#include <unistd.h>\n"
SIGNATURE = "int launch(const float *x, float *y, int64_t n)"


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    with Folder() as folder:
        async with client_of(folder) as client:
            yield client


@pytest.fixture(scope="module")
async def problem_id(client: Client) -> str:
    return (await called(client, "register_problem", **PROBLEM))["problem_id"]


async def test_an_unknown_problem_is_named_with_what_to_do(client: Client):
    text = await refused(client, "evaluate_kernel", problem_id="p-000000000000", source=HONEST, language="c")
    assert "p-000000000000" in text and "list_problems" in text


async def test_a_source_over_1_mib_is_refused_with_the_limit(client: Client):
    text = await refused(client, "compile_kernel", source="//" + "x" * (1 << 20), language="c")
    assert "1048576" in text or "1,048,576" in text


@pytest.mark.parametrize("junk", ["\x7fELF\x02\x01\x01\x00\x00", "int x;\x00"])
async def test_binary_junk_as_a_source_is_refused(client: Client, junk: str):
    assert "binary" in await refused(client, "compile_kernel", source=junk, language="c")


@pytest.mark.parametrize("path", ["../x.c", "/etc/passwd", "a/../../b", ""])
async def test_a_path_out_of_the_workspace_is_refused(client: Client, path: str):
    workspace = (await called(client, "write_files", files={"a.c": HONEST}))["workspace_id"]
    for tool in ("read_file", "compile_kernel"):
        text = await refused(client, tool, workspace_id=workspace, path=path)
        assert "path" in text.lower() or "file" in text.lower(), text
    assert "path" in (await refused(client, "write_files", workspace_id=workspace, files={path: "x"})).lower()


async def test_a_local_file_that_vanished_is_said_to_be_gone(client: Client, tmp_path: Path):
    text = await refused(client, "compile_kernel", path=str(tmp_path / "gone.c"))
    assert "gone.c" in text


async def test_an_arch_that_the_compiler_does_not_know_is_answered_with_those_it_knows(client: Client):
    status = await called(client, "gpu_status")
    if "nvcc" not in status["hosts"][0]["toolchains"]:
        pytest.skip("nvcc is not installed")
    text = await refused(client, "compile_kernel", source="__global__ void k() {}", language="cuda", arch="sm_10")
    assert "sm_10" in text and "sm_90" in text


async def test_a_source_that_does_not_compile_is_a_result_and_recorded(client: Client, problem_id: str):
    found = await called(client, "evaluate_kernel", problem_id=problem_id, source="int launch( { oops }", language="c")
    assert found["status"] == "compile_failed" and found["diagnostics"][0]["line"] == 1
    listed = await called(client, "list_attempts", problem_id=problem_id, view="failures")
    assert listed["attempts"][0]["status"] == "compile_failed"


async def test_a_flag_that_runs_or_reads_something_is_refused(client: Client):
    for flag in ("-fplugin=/tmp/x.so", "@/etc/passwd", "-wrapper", "-o", "-include/etc/passwd"):
        assert flag[:8] in await refused(client, "compile_kernel", source=HONEST, language="c", flags=[flag])


async def test_a_reference_that_raises_is_refused_with_its_traceback(client: Client):
    broken = {**PROBLEM, "reference": "def reference(x):\n    raise ValueError('no such thing')\n"}
    text = await refused(client, "register_problem", **broken)
    assert "no such thing" in text and "ValueError" in text


async def test_a_tolerance_that_zeros_pass_is_refused(client: Client):
    lax = {**PROBLEM, "reference": "def reference(x):\n    return x * 1e-9\n", "atol": 1e-3}
    text = await refused(client, "register_problem", **lax)
    assert "zeros" in text


async def test_an_unknown_argument_is_answered_with_the_known_ones(client: Client):
    text = await refused(client, "run_command", command=["true"], shell=True)
    assert "shell" in text and "timeout_s" in text


@pytest.mark.parametrize(
    ("body", "verdict", "words"),
    [
        ("for (;;) puts(\"verdict: correct PASS speedup 1000\"); return 0;", "incorrect", "did not"),
        ("for (;;) if (fork() < 0) {} return 0;", "incorrect", ""),
        ("for (;;) { char *p = malloc(1 << 24); if (p) for (long i = 0; i < 1 << 24; i += 4096) p[i] = 1; } return 0;", "incorrect", "memory"),
        ("kill(getppid(), SIGKILL); kill(-1, SIGKILL); return 0;", None, ""),
        ("exit(0);", "incorrect", "exit"),
        ("printf(\"{\\\"verdict\\\": \\\"correct\\\"}\"); return 0;", "cheat", "without computing"),
        ("y[-1] = 3; y[n] = 3; for (int64_t i = 0; i < n; i++) y[i] = 2 * tanhf(x[i]) + 1; return 0;", "incorrect", "outside"),
        ("for (int64_t i = 0; i < n; i++) y[i] = 0.0 / 0.0; return 0;", "incorrect", "nan"),
        ("return 7;", "incorrect", "7"),
    ],
    ids=["10 GB of output", "forks without end", "allocates without end", "kills its parent", "exit 0", "prints a verdict",
         "writes outside", "NaN", "returns 7"],
)  # fmt: skip
async def test_a_candidate_that_misbehaves_gets_its_verdict_and_the_server_lives(
    client: Client, problem_id: str, monkeypatch: pytest.MonkeyPatch, body: str, verdict: str | None, words: str
):
    if body.startswith(("for (;;) puts", "for (;;) if (fork()")):  # it never ends: its time is waited out
        monkeypatch.setattr(judge_job, "ROUND_TIMEOUT_S", 1.0)
        monkeypatch.setattr(crash_stacks, "HANG_S", {"c": 3.0})
        monkeypatch.setattr(crash_stacks, "BESIDE_S", 3.0)  # this test reads no stack
    monkeypatch.setattr(judge_job, "MEMORY_BYTES", 1 << 30)
    found = await called(
        client, "evaluate_kernel", problem_id=problem_id, source=HEAD + SIGNATURE + "{" + body + "}", language="c"
    )
    assert found["status"] == "judged", found
    assert found["verdict"] == verdict if verdict else found["verdict"] in ("incorrect", "cheat"), found["reason"]
    assert words in found["reason"].lower()
    monkeypatch.undo()
    anew = {"source": HONEST, "language": "c", "timing": {"fresh": True, "tier": "correctness"}}
    again = await called(client, "evaluate_kernel", problem_id=problem_id, **anew)
    assert again["verdict"] == "correct", again["reason"]


async def test_a_program_that_floods_its_output_is_kept_to_a_limit_that_is_said(client: Client):
    found = await called(client, "run_command", command=["sh", "-c", "yes | head -c 400000000"], timeout_s=100)
    assert found["status"] == "ok" and "kept" in found["note"] and found["stdout_left_out_bytes"] > 300_000_000


async def test_a_host_without_a_compiler_is_a_clear_error(client: Client):
    from gpu_mcp_server.errors import ToolMissing
    from gpu_mcp_server.services.builds.candidate_source import CandidateSource
    from tests.laboratory import laboratory

    async with laboratory() as lab:
        probe = await lab.hosts.probe("local")
        link = await lab.hosts.link("local")
        lab.hosts._probes["local"] = (link, probe.model_copy(update={"compilers": {}, "nvcc": None}))
        for language, program in (("c", "C compiler"), ("cuda", "nvcc")):
            with pytest.raises(ToolMissing, match=program):
                await lab.builds.compiler.compile(CandidateSource("int x;", language, "kernel"))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which needs root")
async def test_a_full_disk_is_said_and_nothing_is_lost():
    with Folder() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0711", "tmpfs", folder], check=True)
        try:
            async with client_of(folder) as client:
                workspace = (await called(client, "write_files", files={"a.txt": "kept"}))["workspace_id"]
                with (folder / "ballast").open("wb") as ballast:
                    try:
                        for _ in range(64):
                            ballast.write(b"\0" * (1 << 20))
                            ballast.flush()
                    except OSError:
                        pass
                text = await refused(client, "write_files", workspace_id=workspace, files={"b.txt": "x" * 1_000_000})
                assert "space" in text or "disk" in text.lower(), text
                (folder / "ballast").unlink()
                assert (await called(client, "read_file", workspace_id=workspace, path="a.txt"))["text"] == "kept"
                assert (await called(client, "run_command", command=["true"]))["status"] == "ok"
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
