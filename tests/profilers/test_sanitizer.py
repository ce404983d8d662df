"""compute-sanitizer's words: captured by data/capture.py from planted mistakes, and junk."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import coredump, sanitizer

DATA = Path(__file__).parent / "data" / "sanitizer"
PROGRAMS = {p.name: p.read_text() for p in (DATA.parent / "programs").iterdir()}
UNITS = 256
"""Threads of the planted kernels' blocks, and floats of their buffers."""


def found(name: str):
    return sanitizer.parse((DATA / f"{name}.txt").read_text(), PROGRAMS)


def planted(mark: str, program: str = "kernels.cu") -> tuple[str, int]:
    """Return file and line of a planted mistake."""
    (line,) = [n for n, text in enumerate(PROGRAMS[program].splitlines(), 1) if text.endswith(f"BUG {mark}")]
    return program, line


def test_a_write_past_the_end_has_line_thread_and_distance_and_its_aftermath_is_left_out():
    report = found("memcheck")
    (finding,) = report.findings
    assert (finding.kind, finding.kernel) == ("invalid access", "past_end")
    assert (finding.file, finding.line) == planted("past_end")
    assert finding.source == "x[threadIdx.x + 1] = 1.0f;  // BUG past_end"
    assert finding.thread == f"first by thread ({UNITS - 1},0,0) block (0,0,0)"
    assert finding.detail == f"1 bytes after the nearest allocation of {4 * UNITS:,} bytes"
    assert (report.errors or 0) > 1, "calls that failed after it are counted, and not repeated"


def test_a_mistake_of_many_threads_is_one_finding():
    report = found("memcheck_wild")
    (finding,) = report.findings
    assert (finding.count, (finding.file, finding.line)) == (4, planted("wild"))
    assert report.errors and report.not_printed == report.errors - 4
    report = found("initcheck")
    assert [(f.kind, f.count, (f.file, f.line)) for f in report.findings] == [
        ("uninitialized", 5, planted("unwritten"))
    ]
    assert (report.errors, report.not_printed) == (UNITS, UNITS - 5)


def test_a_race_names_both_lines():
    (finding,) = found("racecheck").findings
    sides = planted("race")[1], planted("race, its other side")[1]
    assert (finding.kind, (finding.line, finding.other_line), finding.count) == ("race", sides, 4 * UNITS)
    assert finding.detail == f"write here, read at kernels.cu:{sides[1]}"
    (each,) = found("racecheck_all").findings
    assert ((each.line, each.other_line), each.count) == (sides, 6)


def test_a_barrier_error_is_shown_at_the_users_line_not_in_the_header():
    (finding,) = found("synccheck").findings
    assert (finding.kind, finding.kernel, finding.count) == ("barrier", "bad_mask", 4)
    assert (finding.file, finding.line) == planted("bad_mask")


def said(*lines: str) -> str:
    return "\n".join(f"========= {line}" for line in (*lines, "", "ERROR SUMMARY: 1 error"))


def test_both_frames_of_the_user_are_shown_and_the_line_that_launched():
    """A helper of the user's own wrote past the end: its line is the mistake, the kernel is who called it."""
    text = said(
        "Invalid __global__ write of size 4 bytes",
        "    at put(float *, int)+0x30 in helpers.cuh:7",
        "    by thread (3,0,0) in block (0,0,0)",
        "    Access at 0x7f0000000010 is out of bounds",
        "        Device Frame: fill(float *)+0x80 in fill.cu:21",
        "    Saved host backtrace up to driver entry point at kernel launch time",
        "        Host Frame: cudaLaunchKernel [0x9] in libcudart.so",
        "        Host Frame: main in fill.cu:40 [0x8a81] in fill",
    )
    (finding,) = sanitizer.parse(text).findings
    assert (finding.file, finding.line, finding.kernel) == ("helpers.cuh", 7, "put")
    assert finding.called_from == "called from fill at fill.cu:21; launched by main at fill.cu:40"
    assert finding.detail == "out of bounds"


def test_a_header_of_the_toolkit_is_not_the_users_line():
    text = said(
        "Invalid __global__ atomic of size 4 bytes",
        "    at atomicAdd(int *, int)+0x10 in sm_60_atomic_functions.hpp:77",
        "        Device Frame: count(int *)+0x80 in count.cu:12",
    )
    (finding,) = sanitizer.parse(text).findings
    assert (finding.file, finding.line, finding.called_from) == ("count.cu", 12, None)


def test_older_words_have_file_line_and_kernel():
    text = said(
        "Invalid __global__ write of size 4 bytes",
        "    at 0x30 in /src/old.cu:6:unaligned(void)",
        "    by thread (0,0,0) in block (0,0,0)",
        "    Address 0x15551a800001 is misaligned",
    )
    (finding,) = sanitizer.parse(text).findings
    assert (finding.file, finding.line, finding.kernel) == ("/src/old.cu", 6, "unaligned")
    assert finding.detail == "misaligned"


def test_a_triton_kernel_is_shown_at_its_python_line_with_the_text():
    first = found("memcheck_triton").findings[0]
    assert ((first.file, first.line), first.kernel) == (planted("past_end", "kernels.py"), "past_end_kernel")
    assert first.source == "tl.store(out + at, 1.0)  # BUG past_end"


def test_two_sources_of_one_name_show_no_line():
    text = (DATA / "memcheck_triton.txt").read_text()
    source = PROGRAMS["kernels.py"]
    first = sanitizer.parse(text, {"a/kernels.py": source, "b/kernels.py": source}).findings[0]
    assert first.line and first.source is None


def test_a_refused_launch_and_leaks_name_where_they_come_from():
    launch, error, *leaks = found("memcheck_launch").findings
    assert launch.message == "cudaLaunchKernel returned cudaErrorInvalidValue (invalid argument)"
    assert (launch.called_from, error.called_from) == ("from past_end in kernels", "from main in kernels")
    assert [(f.kind, f.count, f.called_from) for f in leaks] == [("leak", 2, "from main in kernels")]
    (leak,) = found("memcheck_leak").findings
    assert (leak.message, leak.called_from) == (f"leaked {4 * UNITS:,} bytes", "from main in kernels")


def test_clean_is_clean():
    report = found("clean")
    assert (report.findings, report.errors, report.troubles) == ([], 0, [])


def test_a_tool_that_could_not_attach_says_so():
    text = "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. compute-sanitizer timed-out.\n"
    assert sanitizer.parse(text).troubles == ["Error: No attachable process found. compute-sanitizer timed-out."]
    assert sanitizer.parse(text).errors is None


def test_a_core_dump_says_exception_kernel_line_and_thread():
    said = coredump.parse((DATA / "cuda_gdb.txt").read_text(), PROGRAMS)
    file, line = planted("wild")
    text = PROGRAMS[file].splitlines()[line - 1].strip()
    assert said == f"Warp Illegal Address in wild at {file}:{line} `{text}`, block (0,0,0) thread (0,0,0)"
    frame = "CUDA Exception: Warp Misaligned Address\n#0  {}k<<<(1,1,1),(256,1,1)>>> () at /src/k.cu:7\n"
    for address in ("", "0x00007f0b0f7a0080 in "):  # cuda-gdb leaves it out where the line begins there
        assert coredump.parse(frame.format(address)) == "Warp Misaligned Address in k at k.cu:7"
    assert coredump.parse("No symbol table is loaded.") is None


def test_the_run_times_words_for_a_broken_kernel_are_known():
    assert coredump.kernel_fault("CUDA error k.cu:12 cudaErrorIllegalAddress: an illegal memory access was encountered")
    assert coredump.kernel_fault("RuntimeError: CUDA error: misaligned address")
    assert not coredump.kernel_fault("all 4096 results are right")


def test_an_older_tool_without_line_information_still_names_the_kernel():
    said = (
        "========= Invalid __global__ write of size 8 bytes\n=========     at 0x1c0 in fillRows(double*, int)\n"
        "=========     by thread (3,0,0) in block (2,0,0)\n=========     Address 0x7f0000000 is not writable\n"
    )
    (finding,) = sanitizer.parse(said).findings
    assert (finding.kernel, finding.file, finding.line, finding.detail) == ("fillRows", None, None, "not writable")


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
