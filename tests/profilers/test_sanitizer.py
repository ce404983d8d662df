"""compute-sanitizer's words: captured on an H200 from planted mistakes, and junk."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import coredump, sanitizer

DATA = Path(__file__).parent / "data" / "sanitizer"
SOURCE = "\n" * 12 + "    tl.store(out + o, 1.0)  # BUG: no mask\n"


def found(name: str, **sources: str):
    return sanitizer.parse((DATA / f"{name}.txt").read_text(), sources)


def test_a_write_past_the_end_has_line_thread_and_distance_and_its_aftermath_is_left_out():
    report = found("memcheck")
    (finding,) = report.findings
    assert (finding.kind, finding.kernel, finding.file, finding.line) == ("invalid access", "oob", "kernels.cu", 27)
    assert finding.thread == "first by thread (255,0,0) block (0,0,0)"
    assert finding.detail == "1 bytes after the nearest allocation of 1,024 bytes"
    assert report.errors == 2


def test_a_mistake_of_many_threads_is_one_finding():
    (finding,) = found("memcheck_wild").findings
    assert (finding.count, finding.line) == (4, 29)
    report = found("initcheck")
    assert [(f.kind, f.count, f.line) for f in report.findings] == [("uninitialized", 5, 34)]
    assert (report.errors, report.not_printed) == (256, 156)


def test_a_race_names_both_lines():
    (finding,) = found("racecheck").findings
    assert (finding.kind, finding.line, finding.other_line, finding.count) == ("race", 30, 32, 1024)
    assert finding.detail == "write here, read at kernels.cu:32"
    (each,) = found("racecheck_all").findings
    assert (each.line, each.other_line) == (30, 32)


def test_a_barrier_error_is_shown_at_the_users_line_not_in_the_header():
    (finding,) = found("synccheck").findings
    assert (finding.kind, finding.kernel, finding.file, finding.line, finding.count) == (
        "barrier",
        "bs",
        "sync2.cu",
        2,
        4,
    )


def test_a_triton_kernel_is_shown_at_its_python_line_with_the_text():
    first = found("memcheck_triton", **{"lib/tri2.py": SOURCE}).findings[0]
    assert (first.file, first.line, first.kernel) == ("tri2.py", 13, "oob_kernel")
    assert first.source == "tl.store(out + o, 1.0)  # BUG: no mask"


def test_two_sources_of_one_name_show_no_line():
    first = found("memcheck_triton", **{"a/tri2.py": SOURCE, "b/tri2.py": SOURCE}).findings[0]
    assert first.source is None


def test_a_refused_launch_and_leaks_name_where_they_come_from():
    launch, error, *leaks = found("memcheck_launch").findings
    assert launch.message == "cudaLaunchKernel returned cudaErrorInvalidValue (invalid argument)"
    assert (launch.called_from, error.called_from) == ("from oob in k", "from main in k")
    assert [(f.kind, f.count, f.called_from) for f in leaks] == [("leak", 2, "from main in k")]
    (leak,) = found("memcheck_leak").findings
    assert (leak.message, leak.called_from) == ("leaked 1,024 bytes", "from main in k")


def test_clean_is_clean():
    report = found("clean")
    assert (report.findings, report.errors, report.troubles) == ([], 0, [])


def test_a_tool_that_could_not_attach_says_so():
    text = "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. compute-sanitizer timed-out.\n"
    assert sanitizer.parse(text).troubles == ["Error: No attachable process found. compute-sanitizer timed-out."]
    assert sanitizer.parse(text).errors is None


def test_a_core_dump_says_exception_kernel_line_and_thread():
    said = coredump.parse((DATA / "cuda_gdb.txt").read_text(), {"kernels.cu": "\n" * 28 + "x[t<<36]=1;"})
    assert said == "Warp Illegal Address in oob_wild at kernels.cu:29 `x[t<<36]=1;`, block (0,0,0) thread (0,0,0)"
    assert coredump.parse("No symbol table is loaded.") is None


def test_the_run_times_words_for_a_broken_kernel_are_known():
    assert coredump.broke("CUDA error k.cu:12 cudaErrorIllegalAddress: an illegal memory access was encountered")
    assert coredump.broke("RuntimeError: CUDA error: misaligned address")
    assert not coredump.broke("all 4096 results are right")


LINES = [line for path in DATA.glob("*.txt") for line in path.read_text().splitlines()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=80)), max_size=30))
def test_no_order_of_lines_and_no_junk_makes_it_raise(lines: list[str]):
    text = "\n".join(lines)
    report = sanitizer.parse(text, {"kernels.cu": text})
    assert all(f.count >= 1 for f in report.findings)
    coredump.parse(text)


@pytest.mark.parametrize("cut", [1, 7, 100, 333, 700])
def test_output_that_was_cut_anywhere_is_read_as_far_as_it_goes(cut: int):
    for path in DATA.glob("*.txt"):
        sanitizer.parse(path.read_text()[:-cut])
