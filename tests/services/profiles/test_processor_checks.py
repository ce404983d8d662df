"""Checks of memory on a processor: gcc's sanitizers around real attempts, in real jobs."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.memory_check import MemoryCheck
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.profilers import host_sanitizers
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import HONEST, PROBLEM, laboratory
from tests.services.profiles.attempts import noted_attempt

BEYOND = HONEST.replace("i < n", "i <= n")
OVERFLOW = HONEST.replace("return 0;", "volatile int most = 2147483647;\n    y[0] = most + (int)n;\n    return 0;")
RACE = """#include <pthread.h>
#include <stdint.h>
static void *add(void *y) {
    ((float *)y)[0] += 1;
    return 0;
}
extern "C" int launch(const float *x, float *y, int64_t n) {
    pthread_t one, two;
    pthread_create(&one, 0, add, y);
    pthread_create(&two, 0, add, y);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        yield lab


async def check(
    lab: Lab, text: str, tool: str = "memcheck", language: str = "c", compiler: str | None = None, name: str = "kernel"
) -> MemoryCheck:
    """Note an attempt of a source and check it."""
    attempt_id = await noted_attempt(lab, PROBLEM, text, language, compiler, name=name)
    target = RunTarget(attempt_id=attempt_id, shape={"n": 100})
    return await lab.profiles.checker.check(target, tool)  # pyright: ignore[reportArgumentType]


async def test_a_write_past_the_end_and_an_overflow_are_found_with_their_lines(lab: Lab):
    beyond = await check(lab, BEYOND, name="scale_rows.c")
    assert beyond.status == "findings", beyond.summary()
    first = beyond.findings[0]
    assert (first.kind, first.file, first.line, first.kernel) == ("invalid access", "scale_rows.c", 5, "launch")
    assert first.message.startswith("heap-buffer-overflow: ") and "40" in (first.detail or ""), first
    assert "y[i] = 2 * tanhf" in (first.source or "")
    overflow = await check(lab, OVERFLOW)
    assert [(f.line, "signed integer overflow" in f.message) for f in overflow.findings] == [(7, True)]


async def test_an_honest_attempt_is_clean_for_both_and_other_tools_are_refused(lab: Lab):
    for tool in ("memcheck", "racecheck"):
        clean = await check(lab, HONEST, tool)
        assert (clean.status, clean.findings, clean.errors) == ("clean", [], 0), clean.summary()
    assert clean.checker and clean.checker.startswith("ThreadSanitizer of gcc")
    with pytest.raises(BadRequest, match="initcheck needs a GPU"):
        await check(lab, HONEST, "initcheck")


LEAK = HONEST.replace("int launch", "#include <stdlib.h>\nint launch").replace(
    "return 0;", "float *lost = malloc(4 * n);\n    lost[0] = x[0];\n    y[0] += 0 * lost[0];\n    return 0;"
)


async def test_a_leak_is_found_with_the_line_that_allocated(lab: Lab):
    leak = await check(lab, LEAK)
    assert leak.status == "findings", leak.summary()
    (found,) = leak.findings
    assert (found.kind, found.file, found.line, found.kernel) == ("leak", "kernel.c", 7, "launch")
    assert found.message == "never freed: Direct leak of 400 byte(s)"


async def test_a_candidate_of_clang_is_checked_or_the_missing_package_named(lab: Lab):
    probe = await lab.hosts.probe("local")
    if "clang" not in probe.compilers and "clang" not in probe.toolchains.tools:
        pytest.skip("clang is not here")
    leak = await check(lab, LEAK, compiler="clang")
    if leak.status == "not_checked":
        assert "libclang-rt" in (leak.note or ""), leak.summary()
    else:
        assert [(f.kind, f.line) for f in leak.findings] == [("leak", 7)], leak.summary()
        assert " of clang" in (leak.checker or "")


def test_leaks_that_could_not_be_looked_for_are_no_clean_bill():
    text = "==2==AddressSanitizer Init done\n==2==LeakSanitizer has encountered a fatal error.\n"
    assert host_sanitizers.missed_leaks(text) and host_sanitizers.parse(text, {}).findings == []


async def test_a_race_of_two_threads_in_cpp_is_found_with_its_line(lab: Lab):
    race = await check(lab, RACE, "racecheck", "cpp", name="-o hostile; name.cpp")
    assert race.status == "findings", race.summary()
    assert {(f.kind, f.file, f.line, f.other_line) for f in race.findings} == {("race", "kernel.cpp", 4, 4)}


async def test_a_mistake_behind_a_flood_of_words_is_not_called_clean(lab: Lab):
    loop = 'for (int k = 0; k < 200000; k++) puts("harmless");\n    volatile'
    flood = "#include <stdio.h>" + OVERFLOW.replace("volatile", loop)
    assert "puts" in flood
    checked = await check(lab, flood)
    assert checked.status == "not_checked" and "more than 1 MiB" in (checked.note or ""), checked.summary()


async def test_a_program_is_clean_only_with_a_sanitizer_in_it(lab: Lab):
    text = "int main(int c, char **v) { int a[4] = {0}; return a[c + 3]; }\n"
    workspace = (await lab.store.workspaces.write(None, {"a.c": text})).workspace_id
    build = "gcc -g {} a.c -o /tmp/a && /tmp/a"
    for flags, status in (("-fsanitize=address", "findings"), ("", "not_checked")):
        command = ["sh", "-c", build.format(flags)]
        found = await lab.profiles.checker.check(RunTarget(command=command, workspace_id=workspace))
        assert found.status == status, found.summary()
    assert "-fsanitize=address,undefined" in (found.note or "")


def test_a_flood_of_forged_reports_stays_within_limits():
    forged = "==1==ERROR: AddressSanitizer: heap-buffer-overflow " + "x" * 5000 + "\n    #0 0x1 in f k.c:1\n"
    endless = "k.c:1:1: runtime error: " + "y" * 5000 + "\n"
    report = host_sanitizers.parse(forged * 3000 + endless * 3000, {"k.c": "int f;"})
    assert report.errors == host_sanitizers.MOST_REPORTS
    assert all(len(f.message) < 400 for f in report.findings) and len(report.findings) <= 2


@given(st.text())
def test_junk_has_no_findings(text: str):
    assert host_sanitizers.parse(text, {}).findings == []
