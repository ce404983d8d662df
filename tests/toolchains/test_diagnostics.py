"""Messages of compilers: captured from nvcc 13.0.88 and gcc 12.2 by data/capture.py, invented junk, hostile symbols."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.toolchains import messages
from gpu_mcp_server.models.build import diagnostic_lines
from gpu_mcp_server.toolchains import diagnostics, resources

DATA = Path(__file__).parent / "data"


def captured(name: str) -> str:
    return (DATA / "nvcc" / f"{name}.stderr").read_text()


def parsed(name: str):
    return diagnostics.parse(captured(name))


def test_front_end_errors_have_file_line_and_source():
    first, *rest = parsed("syntax")
    assert (first.severity, first.file, first.line, first.message) == ("error", "syntax.cu", 5, 'expected a ";"')
    assert first.context == ["if (at >= count) return;"]
    assert [d.line for d in rest] == [6, 7, 8, 9, 10]


def test_warnings_that_both_passes_repeat_come_once_and_after_errors():
    found = parsed("warnings")
    assert found[0].severity == "error"
    assert [d.severity for d in found] == sorted((d.severity for d in found), key=["error", "warning", "note"].index)
    assert len({(d.file, d.line, d.message) for d in found}) == len(found)
    assert [d.code for d in found if d.message.startswith('variable "index"')] == ["#549-D"]
    assert "-Wreturn-type" in [d.code for d in found]


def test_source_is_shown_as_it_was_written_not_as_preprocessed():
    assert "__attribute__" not in "".join(c for d in parsed("warnings") for c in d.context)
    assert any(c.startswith("__global__ void uses") for d in parsed("warnings") for c in d.context)


def test_a_chain_of_instantiations_keeps_its_beginning_and_its_end():
    (found,) = parsed("deep")
    assert len(found.context) == 3
    assert found.context[1].endswith('[with Left=1301]" at line 2')
    assert found.context[2].endswith("at line 5")
    assert found.hint


def test_an_instantiation_on_one_line_is_kept():
    assert parsed("template")[0].context[-1] == 'instantiation of class "Packed<T> [with T=double]" at line 7'


def test_a_symbol_that_is_missed_at_many_places_is_one_message():
    where = "k.cudafe1.cpp:(.text._Z1fIiEvv[_Z1fIiEvv]+0x3d3)"
    found = diagnostics.parse(
        "/usr/bin/ld: k.o: in function `void f<int>()':\n"
        f"{where}: undefined reference to `isPow2'\n/usr/bin/ld: {where}: undefined reference to `isPow2'\n"
        f"/usr/bin/ld: k.o:{where}: more undefined references to `isPow2' follow\n"
        "collect2: error: ld returned 1 exit status\n"
    )
    assert [d.message for d in found] == ["undefined reference to `isPow2'"] and found[0].hint


def test_what_an_extension_misses_besides_python_is_a_warning():
    found = diagnostics.parse(
        "/usr/bin/ld: /tmp/ccA.o: in function `g(int)':\nk.cpp:(.text+0x12): warning: undefined reference to `f(int)'\n"
        "/usr/bin/ld: k.cpp:(.text+0x1e): warning: undefined reference to `PyObject_Call'\n"
        "/usr/bin/ld: k.cpp:(.text+0x2a): warning: undefined reference to `f(int)'\n"
        "/usr/bin/ld: /tmp/k.cpp:7: warning: undefined reference to `_Py_NoneStruct'\n"
        "/usr/bin/ld: k.o:k.cpp:(.text+0x3a): warning: more undefined references to `_Py_NoneStruct' follow\n"
    )
    assert [(d.severity, d.message) for d in found] == [("warning", "undefined reference to `f(int)'")]


@pytest.mark.parametrize(
    "said",
    ["a.hip:2:10: fatal error: 'own.hpp' file not found", "a.c:2:10: fatal error: own.h: No such file or directory"],
)
def test_where_to_put_a_missing_header_is_told_whatever_compiler_misses_it(said: str):
    (found,) = diagnostics.parse(said + "\n")
    assert found.hint and "-IFOLDER" in found.hint


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("a.hip:2:10: fatal error: 'hipcub/device/device_reduce.hpp' file not found", "hipcub-dev"),
        ("a.hip:2:10: error: 'thrust/copy.h' file not found", "rocthrust-dev"),
        ("a.cu:3:10: fatal error: helper_cuda.h: No such file or directory", "cuda-samples"),
        ("a.hip:3:10: error: 'helper_functions.h' file not found", "cuda-samples"),
    ],
)
def test_a_header_of_a_library_or_a_collection_is_told_as_that(said: str, words: str):
    assert words in (diagnostics.parse(said + "\n")[0].hint or "")


def test_a_hint_of_several_messages_is_shown_once():
    missing = "".join(f"a.cu:{n}:10: fatal error: own{n}.h: No such file or directory\n" for n in (1, 2))
    lines = diagnostic_lines(diagnostics.parse(missing))
    assert [line.count("hint:") for line in lines] == [1, 0] and "own2.h" in lines[1]


def test_notes_become_context_of_their_message():
    (found,) = [d for d in parsed("warnings") if "deprecated" in d.message]
    assert any("note: because of" in c for c in found.context)


@pytest.mark.parametrize(
    ("name", "message", "file", "line"),
    [
        ("header", "not_there/tiles.cuh: No such file or directory", "header.cu", 1),
        ("undefined_host", "undefined reference to `elsewhere_on_host(int)'", None, None),
        ("undefined_device", "Unresolved extern function 'elsewhere_on_device(double, int)'", None, None),
        ("undefined_linked", "Undefined reference to 'elsewhere_on_device(double, int)'", None, None),
        (
            "shared",
            "Entry function 'reverse(float*)' uses too much shared data (0x13880 bytes, 0xc000 max)",
            None,
            None,
        ),
        ("old_arch", "Unsupported gpu architecture 'sm_20'", None, None),
    ],
)
def test_other_tools_errors_are_one_message_with_a_hint(name, message, file, line):
    (found,) = parsed(name)
    assert (found.severity, found.message, found.file, found.line) == ("error", message, file, line)
    assert found.hint


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("syntax", "front end"),
        ("header", "front end"),
        ("inline_ptx", "ptxas"),
        ("shared", "ptxas"),
        ("spilling", "ptxas"),
        ("undefined_device", "ptxas"),
        ("undefined_linked", "device link"),
        ("undefined_host", "link"),
        ("old_arch", "driver"),
        ("no_such_flag", "driver"),
        ("two_kernels", None),
    ],
)
def test_the_stage_is_that_of_the_first_error(name, stage):
    assert diagnostics.stage_of(parsed(name)) == stage


def test_messages_that_only_say_that_there_were_messages_are_dropped():
    assert not any(
        "aborted" in d.message or "ld returned" in d.message for d in parsed("inline_ptx") + parsed("undefined_host")
    )


def test_a_message_about_messages_is_kept_when_it_is_all_there_is():
    (found,) = diagnostics.parse("collect2: error: ld returned 1 exit status\n")
    assert found.code == "collect2"


def test_ptxas_lines_lead_to_the_source_through_the_listing():
    listing = '.file 1 "/elsewhere/kernel.cu"\n' + "\n" * 20 + "\t.loc\t1 7 3\n" + "\n" * 30
    found = diagnostics.parse(captured("inline_ptx"), listing)
    assert (found[0].file, found[0].line, found[0].code) == ("kernel.cu", 7, "ptx line 27")
    assert parsed("inline_ptx")[0].file is None


def test_an_instruction_of_the_a_architectures_gets_its_hint():
    assert any("sm_90a" in (d.hint or "") for d in parsed("inline_ptx"))


def test_gcc_errors_in_headers_name_the_line_of_the_user_that_required_them():
    text = (
        "/usr/include/c++/12/bits/predefined_ops.h: In instantiation of 'constexpr bool f() [with T = S]':\n"
        "/usr/include/c++/12/bits/stl_algo.h:1809:14:   required from 'constexpr void g()'\n"
        "kernel.cpp:4:63:   required from here\n"
        "/usr/include/c++/12/bits/predefined_ops.h:45:23: error: no match for 'operator<'\n"
        "   45 |       { return *__it1 < *__it2; }\n"
        "      |                ~~~~~~~^~~~~~~~\n"
    )
    (found,) = diagnostics.parse(text)
    assert (found.line, found.column) == (45, 23)
    assert found.context == ["{ return *__it1 < *__it2; }", "required from kernel.cpp:4"]


def test_the_first_of_many_notes_is_kept():
    text = "a.c:1:2: error: bad\n    1 | bad\n" + "".join(f"a.c:{n}:1: note: candidate {n}\n" for n in range(2, 40))
    (found,) = diagnostics.parse(text)
    assert found.context == ["bad", "note: candidate 2 (a.c:2)"]


@pytest.mark.parametrize(
    "text",
    [
        "g++: error: unrecognized command-line option '-fnope'",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "cc1: error: bad value ('x') for '-march=' switch",
        "/usr/bin/ld: cannot find -lnosuch: No such file or directory",
        "kernel.cpp:1:1: internal compiler error: Segmentation fault",
        "/tmp/ccABCDEF.s:12: Error: no such instruction: `foo'",
    ],
)
def test_drivers_linkers_and_assemblers_are_understood(text):
    (found,) = diagnostics.parse(text)
    assert found.severity == "error"
    assert not (found.file or "").startswith("/tmp")


def test_colours_are_dropped():
    (found,) = diagnostics.parse("\x1b[01m\x1b[Ka.c:1:2:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kbad")
    assert found.message == "bad"


def test_long_messages_are_cut():
    (found,) = diagnostics.parse("a.c:1:2: error: " + "x" * 100_000)
    assert len(found.message) == diagnostics.MAX_MESSAGE


def test_the_top_says_how_many_it_left_out():
    many = diagnostics.parse("".join(f"a.c:{n}:1: error: number {n}\n" for n in range(1, 15)))
    shown, left = diagnostics.first_messages(many)
    assert (len(shown), left) == (10, 4)
    assert diagnostics.first_messages(shown) == (shown, None)


def test_the_last_words_stand_in_for_an_output_that_nobody_understands():
    found = diagnostics.output_tail("ptxas info : 0 bytes gmem\nsomething odd\nit broke\n")
    assert (found.message, found.context) == ("it broke", ["something odd"])
    assert diagnostics.output_tail("\n \n") is None


def test_a_symbol_that_would_unfold_to_gigabytes_stays_folded():
    # f(A<int,int>, A<that,that>, ...): each step doubles the text.
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    bomb = "_Z1f1AIiiE" + "".join(f"S_IS{digits[k]}_S{digits[k]}_E" for k in range(30))
    assert diagnostics.demangle_text(bomb) == bomb


def test_resources_of_each_kernel():
    turned, sums = resources.parse(captured("two_kernels"))
    assert turned.kernel == "void turned<16>(double const*, double*, int)"
    assert (turned.registers_per_thread, turned.shared_bytes, turned.stack_bytes, turned.arch) == (16, 2048, 0, "sm_90")
    assert (sums.registers_per_thread, sums.shared_bytes) == (31, 0)


def test_spills_and_stack_are_reported():
    spilled = resources.parse(captured("spilling"))[1]
    assert (spilled.spill_store_bytes, spilled.spill_load_bytes, spilled.stack_bytes) == (832, 1040, 504)


def test_functions_that_were_not_inlined_do_not_overwrite_their_kernel():
    text = (
        "ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'\n"
        "ptxas info    : Function properties for _Z1kPf\n"
        "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 24 registers, used 1 barriers, 512 bytes smem, 400 bytes cmem[0]\n"
        "ptxas info    : Function properties for _Z3devf\n"
        "    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads\n"
    )
    (kernel,) = resources.parse(text)
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (16, 4, 8)
    assert (kernel.registers_per_thread, kernel.shared_bytes) == (24, 512)


def test_relocatable_code_is_described_by_the_linker():
    sums, turned = resources.parse(captured("two_kernels_linked"))
    assert (sums.registers_per_thread, sums.shared_bytes) == (31, 0)
    assert (turned.registers_per_thread, turned.shared_bytes) == (16, 3072)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.stderr")), ids=lambda p: p.stem)
def test_no_line_that_says_error_is_lost(path):
    name, _, _, _, _, lost = messages.row(path)
    assert lost == [], name


@pytest.mark.parametrize("folder", ["nvcc", "hip"])
def test_no_line_that_says_error_is_lost_in_the_captures_beside_the_checkout(folder):
    # The issue "Compile anything" asks for these; where they are not, there is nothing to read.
    captures = sorted((Path(__file__).parents[3] / "shared" / "samples" / folder).glob("*.stderr"))
    if not captures:
        pytest.skip("no captures beside this checkout")
    assert [(p.name, messages.row(p)[-1]) for p in captures if messages.row(p)[-1]] == []


def test_one_kernel_for_two_architectures_is_two_rows():
    text = "".join(
        f"ptxas info    : Compiling entry function '_Z1kv' for '{arch}'\nptxas info    : Used {used} registers\n"
        for arch, used in (("sm_80", 8), ("sm_90", 10))
    )
    assert [(k.arch, k.registers_per_thread) for k in resources.parse(text)] == [("sm_80", 8), ("sm_90", 10)]


LINES = [line for path in sorted(DATA.rglob("*.stderr")) for line in path.read_text().splitlines() if line.strip()]
junk = st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=30).map("\n".join)


@given(junk, st.one_of(st.none(), junk))
@settings(max_examples=150, deadline=None)
def test_no_text_makes_the_parsers_raise(text, listing):
    found = diagnostics.parse(text, listing)
    assert all(d.message.isprintable() and len(d.context) <= 3 for d in found)
    resources.parse(text)
    resources.parse_amd(text, "gfx90a")
    diagnostics.output_tail(text)


@given(st.lists(st.sampled_from(LINES), max_size=6).map("".join), st.integers(0, 400), st.binary(max_size=8))
@settings(max_examples=100, deadline=None)
def test_torn_lines_do_not_make_the_parsers_raise(text, at, junk_bytes):
    torn = text[:at] + junk_bytes.decode("utf-8", "replace") + text[at:]
    diagnostics.parse(torn, torn)
    resources.parse(torn)
