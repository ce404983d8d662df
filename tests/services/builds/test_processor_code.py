"""Assembly of the processor's attempts, by gcc and clang, with what they say of loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains.processor_assembly import vectorization_report

LOOPS = """#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * 2 + 1;
    for (int64_t i = 1; i < n; i++)
        y[i] += y[i - 1] * 0.5f;
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
async def test_assembly_has_lines_kinds_and_what_is_said_of_loops(lab: Lab, compiler: str):
    probe = await lab.hosts.probe("local")
    if compiler not in probe.compilers and compiler not in probe.toolchains.tools:
        pytest.skip(f"{compiler} is not here")
    wish = BuildOptions(compiler=compiler, flags=("-O3",), library=False)
    made = await lab.builds.compiler.compile(CandidateSource(LOOPS, "c", "loops.c"), wish)
    shown = await lab.builds.inspector.inspect(made.attempt_id or "", max_lines=400)
    assert (shown.view, shown.kernel) == ("asm", "launch") and shown.tool.startswith(compiler)
    assert "@loops.c:4" in shown.text, shown.text
    assert any(kind.startswith("vector ") for kind in shown.kernels[0].opcodes), shown.kernels
    assert shown.kernels[0].opcodes["scalar float"] > 0
    first = [line for line in shown.vectorization if line.startswith(("loops.c:3:", "loops.c:4:"))]
    second = [line for line in shown.vectorization if line.startswith(("loops.c:5:", "loops.c:6:"))]
    assert any("vectorized" in line and "not vectorized" not in line for line in first), shown.vectorization
    assert any("not vectorized" in line or "couldn't vectorize" in line for line in second), shown.vectorization


async def test_assembly_of_anything_else_is_refused(lab: Lab):
    with pytest.raises(BadRequest, match="no attempt in C or C"):
        await lab.builds.inspector.inspect("b-0123456789abcdef", view="asm")


@given(st.text())
def test_junk_is_no_report(text: str):
    assert vectorization_report(text, "kernel.c") == []
