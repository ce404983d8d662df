"""Compilers that hang, eat memory or write without end: ended, with the limit named, and the next build is fine."""

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds import build_plans, compiler
from gpu_mcp_server.services.builds.build_plans import compile_limits, cpu_setting
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory, settings_for

GOOD = CandidateSource("int launch(void) { return 0; }\n", "c", "good.c")
HANGS = """constexpr unsigned long turn() {
  unsigned long x = 1;
  for (unsigned long i = 0; i < 1000000000000ul; i++) x = x * 3 + i;
  return x;
}
constexpr unsigned long value = turn();
"""
ENDLESS = ("-fconstexpr-ops-limit=1000000000000", "-fconstexpr-loop-limit=2147483647")
EATS = """template <int A, int B> struct T { T<A - 1, B> x; T<A - 1, B + (1 << A)> y; };
template <int B> struct T<0, B> { int x; };
T<22, 0> much;
"""


async def test_a_compiler_that_hangs_is_ended_and_the_limit_named(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def in_two_seconds(*wish: Any) -> build_plans.PlannedBuild:
        build = build_plans.build_of(*wish)
        return replace(build, plan=replace(build.plan, wall_s=2.0))

    monkeypatch.setattr(compiler, "build_of", in_two_seconds)
    result = await lab.builds.compiler.compile(CandidateSource(HANGS, "cpp", "hangs.cpp"), BuildOptions(flags=ENDLESS))
    assert result.status == "timeout" and "2 s" in (result.note or ""), result.summary()
    assert (await lab.builds.compiler.compile(GOOD)).status == "ok"


DOUBLING = """#if __INCLUDE_LEVEL__ < 100
#include __FILE__
#include __FILE__
#endif
"""
GROWING = """template <int A, long B> struct T { static constexpr long x = T<A - 1, B>::x + T<A - 1, B + (1l << A)>::x; };
template <long B> struct T<0, B> { static constexpr long x = B; };
extern "C" long launch() { return T<40, 0>::x; }
"""


@pytest.fixture(scope="module")
async def hurried() -> AsyncIterator[Lab]:
    """A laboratory whose compiles have a second or so of processor time."""
    async with laboratory(compile_cpu_s=1.0, long_compile_cpu_s=1.5) as opened:
        yield opened


@pytest.mark.parametrize(
    "source",
    [
        CandidateSource(DOUBLING, "c", "doubling.c"),
        CandidateSource(GROWING, "cpp", "growing.cpp"),
        CandidateSource(HANGS, "cpp", "hangs.cpp"),
    ],
    ids=lambda s: s.name,
)
async def test_a_source_that_makes_the_compiler_spin_ends_by_its_processor_time(hurried: Lab, source: CandidateSource):
    flags = ENDLESS if source.text == HANGS else ()
    result = await hurried.builds.compiler.compile(source, BuildOptions(flags=flags))
    assert result.status == "timeout", result.summary()
    said = (
        r"CPU limit of 1 s: role main used (\d+\.\d) s; the setting compile_cpu_s \(GPU_MCP_COMPILE_CPU_S\) raises it"
    )
    used = re.search(said, result.note or "")
    assert used is not None and float(used[1]) >= 1.0, result.note
    assert "limit of 1 s" in result.summary()
    again = await hurried.builds.compiler.compile(source, BuildOptions(flags=flags))
    assert again.status == "timeout" and not again.cached  # who raises the limit is not told the old answer
    assert (await hurried.builds.compiler.compile(GOOD)).status == "ok"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
async def test_nvcc_has_a_limit_of_its_own(hurried: Lab):
    result = await hurried.builds.compiler.compile(CandidateSource(DOUBLING, "cuda", "doubling.cu"))
    assert result.status == "timeout", result.summary()
    assert "CPU limit of 1.5 s" in (result.note or "") and "GPU_MCP_LONG_COMPILE_CPU_S" in (result.note or "")


async def test_a_header_without_end_ends(hurried: Lab):
    result = await hurried.builds.compiler.compile(CandidateSource('#include "/dev/zero"\n', "c", "zero.c"))
    assert result.status in ("failed", "timeout", "oom"), result.summary()
    assert (await hurried.builds.compiler.compile(GOOD)).status == "ok"


def test_limits_are_those_of_the_settings_and_the_clock_follows_who_raises_them(tmp_path: Path):
    usual, raised = settings_for(tmp_path), settings_for(tmp_path, compile_cpu_s=90.0, long_compile_cpu_s=60.0)
    short, long = cpu_setting(long=False), cpu_setting(long=True)
    assert [(compile_limits(usual, s).cpu_s, compile_limits(usual, s).wall_s) for s in (short, long)] == [
        (30.0, 180.0),
        (600.0, 1200.0),
    ]
    assert [(compile_limits(raised, s).cpu_s, compile_limits(raised, s).wall_s) for s in (short, long)] == [
        (90.0, 540.0),
        (60.0, 1200.0),
    ]


async def test_each_compiler_has_the_limit_of_its_kind(lab: Lab):
    probe = await lab.hosts.probe("local")
    kernels = "__global__ void k(int *x) { x[0] = 1; }\n"
    launcher = 'extern "C" int launch(int *x) { cudaMemset(x, 0, 4); return 0; }\n'
    sources = {
        "gcc": (CandidateSource("int launch(void);", "c", "a.c"), False),
        "g++": (CandidateSource("int launch();", "cpp", "a.cpp"), False),
        "nvrtc": (CandidateSource(kernels, "cuda", "k.cu"), False),
        "nvcc": (CandidateSource(kernels + launcher, "cuda", "k.cu"), True),
    }
    for name, (source, long) in sources.items():
        try:
            build = build_plans.build_of(source, probe, "local", BuildOptions(library=False))
        except ToolMissing:
            continue
        assert (build.toolchain.name, build.plan.long) == (name, long)
        spec, _ = lab.builds.compiler.job_of_plan(build.plan, probe, "local")
        assert spec.limits.cpu_s == (600.0 if long else 30.0)


async def test_a_compiler_that_eats_memory_is_ended_and_the_limit_named(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "MEMORY_BYTES", 128 << 20)
    result = await lab.builds.compiler.compile(
        CandidateSource(EATS, "cpp", "eats.cpp"), BuildOptions(flags=("-ftemplate-depth=100",))
    )
    assert result.status == "oom" and "134217728 bytes of memory" in (result.note or ""), result.summary()
    assert (await lab.builds.compiler.compile(GOOD)).status == "ok"


async def test_messages_without_end_become_ten_and_an_artifact(lab: Lab):
    lines = "\n".join(f"int f{n}(void) {{ return missing_{n}_{'x' * 300}; }}" for n in range(3500))
    result = await lab.builds.compiler.compile(
        CandidateSource(lines, "c", "many.c"), BuildOptions(flags=("-fmax-errors=0",))
    )
    assert (result.status, len(result.diagnostics)) == ("failed", 10)
    assert (result.diagnostics_left_out or 0) > 3000 and len(result.summary()) < 8000
    assert (await lab.store.artifacts.info(result.log_artifact_id or "")).size_bytes > 2_000_000
    again = await lab.builds.compiler.compile(
        CandidateSource(lines, "c", "many.c"), BuildOptions(flags=("-fmax-errors=0",))
    )
    assert again.cached and again.diagnostics == result.diagnostics
