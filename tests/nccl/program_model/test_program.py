"""The parser sees what a reader sees in a program, and nothing else."""

import pytest
from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.api_names import ROLES
from gpu_mcp_server.nccl.program_model.edits import EditConflict, Edits
from gpu_mcp_server.nccl.program_model.markers import MarkerFault, blocks, frozen_text
from gpu_mcp_server.nccl.program_model.program import ProgramModel, units_of
from gpu_mcp_server.nccl.program_model.split_conditions import join_arguments
from gpu_mcp_server.nccl.program_model.syntax import KEPT_CHARACTERS, ParsedSource, parse


def collectives(text: str, **files: str) -> list[tuple[str, int]]:
    program = ProgramModel.read({"main.cu": text, **{k.replace("_h", ".h"): v for k, v in files.items()}}, "main.cu")
    return [(c.name, c.line) for c in program.calls if c.name in ROLES]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("// ncclAllReduce(a, b)\n/* ncclSend(x) */ void f() { puts(\"ncclRecv(x)\"); }", []),
        ('const char* k = R"(ncclReduce(x, y))";', []),
        ("#if 0\nvoid f() { ncclReduce(a); }\n#else\nvoid f() { ncclGather(a); }\n#endif", [("ncclGather", 4)]),
        ("#if 1\nvoid f() { ncclReduce(a); }\n#else\nvoid f() { ncclGather(a); }\n#endif", [("ncclReduce", 2)]),
        ("#ifdef X\nvoid f() { ncclReduce(a); }\n#endif", [("ncclReduce", 2)]),
        ("void f() { CK(\n ncclAllReduce(a, /* b, c */ a, n < m ? n : m, t, o, c, s)); }", [("ncclAllReduce", 2)]),
        ("#define AR(p) CK(ncclAllReduce(p, p, n, t, o, c, s))\nvoid f() { AR(x); AR(y); }", [("ncclAllReduce", 2)] * 2),
        ("#define AR(p) ncclAllReduce(p)\n#define TWICE(p) do { AR(p); AR(p); } while (0)\nvoid f() {\n TWICE(x); }",
         [("ncclAllReduce", 4)] * 2),
        ("#define REDUCE ncclAllReduce\nvoid f() { REDUCE(x); }", [("ncclAllReduce", 2)]),
        ("#define COLL(x) nccl##x(p, q)\nvoid f() { COLL(AllReduce); }", [("ncclAllReduce", 2)]),
        ("#define UNUSED(p) ncclAllReduce(p)\nvoid f() { }", []),
        ("#define CK(x) do { if (x) abort(); } while (0)\nvoid f() { CK(ncclSend(a)); }", [("ncclSend", 2)]),
        ("void f() { auto coll = ncclReduceScatter; coll(a, b); }", [("ncclReduceScatter", 1)]),
        ("template <class T> void f(T* p) { ::ncclBcast(p); }", [("ncclBcast", 1)]),
        ("void f() { puts(\"{\"); /* } */ ncclAllReduce(a, a); }", [("ncclAllReduce", 1)]),
        ("void ncclAllReduce_wrapper(); struct ncclAllReduceArgs {};", []),
    ],
)  # fmt: skip
def test_every_collective_is_found_and_none_invented(text: str, found: list[tuple[str, int]]):
    assert collectives(text) == found


def test_arguments_keep_commas_comparisons_and_lose_comments():
    text = "void f() { ncclBroadcast(a < b ? act : ghost, /* in, place */ g, std::max(n, m), t, 0, c[i], s); }"
    (call,) = ProgramModel.read({"m.cu": text}, "m.cu").calls[:1]

    assert call.arguments == ["a < b ? act : ghost", "g", "std::max(n, m)", "t", "0", "c[i]", "s"]


def test_arguments_of_a_hidden_call_are_the_macros_arguments():
    text = (
        "#define AR(p, n) CK(ncclAllReduce((p), (p), (n), ncclFloat, ncclSum, comm, stream))\nvoid f() { AR(grad, 8); }"
    )
    (call,) = [c for c in ProgramModel.read({"m.cu": text}, "m.cu").calls if c.name == "ncclAllReduce"]

    assert call.arguments == ["(grad)", "(grad)", "(8)", "ncclFloat", "ncclSum", "comm", "stream"]
    assert (call.via_macro, call.line) == ("AR", 2)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("k<<<1, 2>>>(a, b);", ("k", "1", "2", None, ["a", "b"], "<<<>>>")),
        ("k<float, (3 > 2)><<<n > 4 ? 64 : 32, 256, 0, s>>>(a);", ("k", "n > 4 ? 64 : 32", "256", "s", ["a"], "<<<>>>")),
        ("ns::k<T, 4><<<dim3((n + 3) / 4, 1, 1), dim3(8), 0, c->s>>>(a, f(b, c));",
         ("k", "dim3((n + 3) / 4, 1, 1)", "dim3(8)", "c->s", ["a", "f(b, c)"], "<<<>>>")),
        ("void* args[] = {&a, (void*)&b}; cudaLaunchCooperativeKernel((void*)k, dim3(1), 32, args, 0, s);",
         ("k", "dim3(1)", "32", "s", ["a", "b"], "cudaLaunchCooperativeKernel")),
        ("cfg.gridDim = 4; cfg.blockDim = 64; cfg.stream = s; cudaLaunchKernelEx(&cfg, k<float>, a, b);",
         ("k", "4", "64", "s", ["a", "b"], "cudaLaunchKernelEx")),
    ],
)  # fmt: skip
def test_every_spelling_of_a_launch_is_read(launch: str, expected: tuple[object, ...]):
    (found,) = ProgramModel.read({"m.cu": f"void f() {{ {launch} }}"}, "m.cu").launches

    assert (found.kernel, found.grid, found.block, found.stream, found.arguments, found.api) == expected


def test_kernels_are_known_behind_templates_and_launch_bounds():
    text = "template <typename T, int U> __global__ void __launch_bounds__(256, 2) k(T* __restrict__ x, const float y[], int n = max(1, 2)) {}"
    kernel = ProgramModel.read({"m.cu": text}, "m.cu").kernels["k"]

    assert kernel.is_template
    assert [(p.name, p.is_pointer, p.is_const) for p in kernel.parameters] == [
        ("x", True, False),
        ("y", True, True),
        ("n", False, False),
    ]


def test_includes_are_followed_within_the_files_that_were_given():
    files = {
        "src/main.cu": '#include "comm.h"\n#include <nccl.h>\n#include "lib/step.cuh"\n',
        "src/comm.h": '#include "../inc/deep.h"\n',
        "inc/deep.h": "void deep() { ncclAllGather(a); }",
        "src/lib/step.cuh": "__global__ void step() {}",
        "other.cu": "void other() { ncclSend(a); }",
    }
    program = ProgramModel.read(files, "src/main.cu")

    assert set(program.sources) == set(files) - {"other.cu"}
    assert program.missing_includes == ["nccl.h"]
    assert [c.name for c in program.calls] == ["ncclAllGather"]


def test_files_are_found_by_what_they_define_after_a_header_that_is_included_twice():
    files = {
        "main.cc": '#include "a.h"\n#include "b.h"\nint main() { Ring ring; ring.step(); gather(); }',
        "a.h": '#include "types.h"\nstruct Ring { Ring(); void step(); };',
        "b.h": '#include "types.h"\nvoid gather();',
        "types.h": "typedef int rank_t;",
        "gather.cc": "void gather() { ncclAllGather(a); }",
        "ring.cc": "void Ring::step() { ncclSend(a); }",
        "made.cc": "Ring::Ring() { ncclBcast(a); }",
        "tree.cc": "void Tree::step() { ncclReduce(a); }",
        "free.cc": "void unused() { ncclRecv(a); }",
    }
    program = ProgramModel.read(files, "main.cc")

    assert set(program.sources) == set(files) - {"tree.cc", "free.cc"}


def test_a_program_of_several_files_is_of_one_generation_and_compiled_unit_by_unit():
    files = {
        "main.cc": '#include "step.h"\n#include "part.inc.cc"\nint main() { step(); }',
        "main.device.cu": '#include "step.h"\nint main() { step(); }',
        "step.h": "void step();",
        "step.cc": "void step() { ncclSend(a); }",
        "step.device.cu": "void step() { ncclx::Send(a); }",
        "part.inc.cc": "int part;",
        "twin.cc": "void step() {} int main() {}",
    }
    old, new = (set(ProgramModel.read(files, m).sources) for m in ("main.cc", "main.device.cu"))

    assert old == {"main.cc", "step.h", "step.cc", "part.inc.cc", "twin.cc"}
    assert new == {"main.device.cu", "step.h", "step.device.cu", "twin.cc"}
    assert units_of({p: files[p] for p in old}, "main.cc") == ["main.cc", "step.cc"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("CTAS", 16), ("2*CTAS", 32), ("dim3(CTAS, 2)", 32), ("LSA", 16), ("1u << 4", 16), ("(size_t)8", 8), ("n", None), ("f(3)", None), ("1/0", None), ("", None)],
)  # fmt: skip
def test_integer_expressions_are_folded_with_the_programs_constants(text: str, value: int | None):
    program = ProgramModel.read({"m.cu": "#define CTAS 16 // CTAs\nconstexpr int LSA = CTAS;\nint n = 3;"}, "m.cu")

    assert program.fold(text) == value


def test_edits_apply_together_or_not_at_all():
    source = parse("m.cu", "int f() { return 1; } // ü")
    edits = Edits(source)
    body = source.root.children[0].child_by_field_name("body")
    assert body is not None
    statement = body.named_children[0]
    edits.insert_before(statement, "a(); ")
    edits.insert_before(statement, "b(); ")
    edits.insert_after(statement, " c();")
    assert edits.apply() == "int f() { a(); b(); return 1; c(); } // ü"

    edits.replace(statement, "x;")
    edits.replace(body, "{}")
    with pytest.raises(EditConflict):
        edits.apply()


def test_markers_say_what_is_frozen():
    text = "a\n// EVOLVE-BLOCK-START kernels\nb\n// EVOLVE-BLOCK-END\nc"
    changed = text.replace("b\n", "other\nlines\n")

    assert [(b.first_line, b.last_line) for b in blocks(text)] == [(2, 4)]
    assert frozen_text(text) == frozen_text(changed)
    assert frozen_text(text) != frozen_text(text.replace("c", "d"))
    for broken in (
        "// EVOLVE-BLOCK-START",
        "// EVOLVE-BLOCK-END",
        "// EVOLVE-BLOCK-START\n// EVOLVE-BLOCK-START\n// EVOLVE-BLOCK-END",
    ):
        with pytest.raises(MarkerFault):
            blocks(broken)


@pytest.mark.parametrize("line", [b"a" * 10**6, b" " * 10**6, b'"' + b"QUJD" * 250000 + b'"', b"f(" * 10**5])
def test_statements_given_to_a_macro_are_found_beside_a_line_of_a_megabyte(line: bytes):
    text = line + b"\nGROUP (send(a); recv(b))\nfor (int i = 0; i < n; i++) { f(i); }"
    assert join_arguments(text) == line + b"\nGROUP (send(a), recv(b))\nfor (int i = 0; i < n; i++) { f(i); }"


def test_a_small_file_is_parsed_once_and_a_large_one_is_not_kept():
    small, large = "void f() {}\n", "void f() {}\n" + "\n" * KEPT_CHARACTERS

    assert parse("a.cu", small) is parse("a.cu", small)
    assert parse("a.cu", small) is not parse("b.cu", small), "findings name the file"
    assert parse("a.cu", small) is not parse("a.cu", small, -1)
    assert parse("a.cu", large) is not parse("a.cu", large)


def test_a_reader_reads_a_node_once():
    source, read = parse("once.cu", "void f() { g(); }"), list[str]()

    def reader(of: ParsedSource, node: Node) -> str:
        read.append(of.text(node))
        return read[-1]

    for node in (source.root, source.root.children[0], source.root):
        assert source.read_once(reader, node) == "void f() { g(); }"
    assert len(read) == 2
