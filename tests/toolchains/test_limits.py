"""Compilers that hang, eat memory or write without end: ended, with the limit named, and the next build is fine."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_mcp_server.models.build import Wish
from gpu_mcp_server.services import compiler, plans
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.sources import Source

GOOD = Source("int launch(void) { return 0; }\n", "c", "good.c")
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
    def in_two_seconds(*wish: Any) -> plans.Build:
        build = plans.build_of(*wish)
        return replace(build, plan=replace(build.plan, wall_s=2.0))

    monkeypatch.setattr(compiler, "build_of", in_two_seconds)
    result = await lab.compiler.compile(Source(HANGS, "cpp", "hangs.cpp"), Wish(flags=ENDLESS))
    assert result.status == "timeout" and "2 s" in (result.note or ""), result.summary()
    assert (await lab.compiler.compile(GOOD)).status == "ok"


async def test_a_compiler_that_eats_memory_is_ended_and_the_limit_named(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "MEMORY_BYTES", 128 << 20)
    result = await lab.compiler.compile(Source(EATS, "cpp", "eats.cpp"), Wish(flags=("-ftemplate-depth=100",)))
    assert result.status == "oom" and "134217728 bytes of memory" in (result.note or ""), result.summary()
    assert (await lab.compiler.compile(GOOD)).status == "ok"


async def test_messages_without_end_become_ten_and_an_artifact(lab: Lab):
    lines = "\n".join(f"int f{n}(void) {{ return missing_{n}_{'x' * 300}; }}" for n in range(3500))
    result = await lab.compiler.compile(Source(lines, "c", "many.c"), Wish(flags=("-fmax-errors=0",)))
    assert (result.status, len(result.diagnostics)) == ("failed", 10)
    assert (result.diagnostics_left_out or 0) > 3000 and len(result.summary()) < 8000
    assert (await lab.artifacts.info(result.log_artifact_id or "")).size_bytes > 2_000_000
    again = await lab.compiler.compile(Source(lines, "c", "many.c"), Wish(flags=("-fmax-errors=0",)))
    assert again.cached and again.diagnostics == result.diagnostics
