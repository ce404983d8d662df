"""Text that the grammar does not understand is counted and shown; statements split by `#if` are read both ways."""

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.program_model import syntax
from gpu_mcp_server.nccl.stages.transformation import transform

REDUCE = "ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);"
MADE = "ncclCommInitRank(&comm, 2, id, 0); float *a, *b; cudaMalloc(&a, 64); cudaMalloc(&b, 64);"


def source(body: str) -> str:
    return f"#include <nccl.h>\nncclComm_t comm;\nint main() {{ {MADE}\n{body}\n}}\n"


def graph(body: str) -> CollectiveGraph:
    return export_graph(Analysis({"main.cu": source(body)}, "main.cu"))


def test_a_call_in_code_that_is_not_understood_is_shown_with_its_line_and_in_the_headline():
    found = graph(f"{REDUCE}\n@ oops ncclGather(a, b, n, ncclFloat, 0, comm, s) $$ if (;")

    assert [s.call for s in found.sites] == ["ncclAllReduce"]
    assert "1 calls in the text that were not understood" in found.headline
    assert any("main.cu:5: ncclGather(" in n for n in found.notes)


def test_where_nothing_is_understood_the_answer_is_not_that_nothing_communicates():
    found = graph("$$ ncclGather(a, b, n, ncclFloat, 0, comm, s) @ if (;")

    assert (found.status, found.sites) == ("ok", [])
    assert "none was understood" in found.headline


@pytest.mark.parametrize(
    "text",
    [
        "// ncclBcast(a, n)",
        'puts("ncclBcast(");',
        "#if 0\nncclBcast(a, n, ncclFloat, 0, comm, s);\n#endif",
        "#define ALL(x) \\\n  ncclBcast(x, n, ncclFloat, 0, comm, s)",
    ],
)
def test_what_is_no_call_is_not_counted(text: str):
    assert "not understood" not in graph(f"{REDUCE}\n{text}").headline


def test_declarations_are_no_calls():
    text = "ncclResult_t ncclReduce(const void*, void*, size_t, int, int, int, ncclComm_t, cudaStream_t);\n"
    found = export_graph(Analysis({"main.cu": text + source(REDUCE)}, "main.cu"))

    assert "not understood" not in found.headline


SPLIT = f"""#if FAST
  if (fast)
#else
  if (slow > 2)
#endif
  {{
    {REDUCE}
  }}
"""


def test_a_condition_that_the_preprocessor_splits_is_understood_both_ways():
    (site,) = graph(SPLIT).sites

    assert (site.call, site.line) == ("ncclAllReduce", 10)
    assert site.conditions == ["fast", "or, compiled otherwise: slow>2"]


def test_a_call_of_the_other_branch_alone_is_a_site_that_no_stage_edits():
    start, rest = "#ifdef ONE\n  ncclReduce(a, b,\n#else\n  ncclBroadcast(a, b,\n#endif", "n, ncclFloat, 0, comm, s);"
    found = graph(f"{start}\n{rest}\n{REDUCE}")

    assert [s.call for s in found.sites] == ["ncclReduce", "ncclAllReduce", "ncclBroadcast"]
    assert [s.stage_a.possible for s in found.sites] == [True, True, False]


def test_an_edit_of_a_file_with_split_statements_keeps_every_other_line():
    result, made = transform({"main.cu": source(SPLIT)}, "main.cu", stages=("infrastructure", "replace"))
    text = made[str(result.main)]

    assert "#if FAST\n  if (fast)\n#else\n  if (slow > 2)\n#endif\n  {\n    ncclx::AllReduce(a, b, n," in text


def test_a_transformation_says_which_calls_it_did_not_understand():
    result, _ = transform(
        {"main.cu": source(f"{REDUCE}\nTRY ncclGather(a, b, n, ncclFloat, 0, comm, s) CATCH;")}, "main.cu"
    )

    assert result.status == "partial"
    assert any("main.cu:5: ncclGather( stands here" in left for left in result.needs_agent)
    alone, made = transform({"main.cu": source("TRY ncclGather(a, b, n, ncclFloat, 0, comm, s) CATCH;")}, "main.cu")
    assert (alone.status, made) == ("needs the agent", {})


def test_a_call_that_gets_a_collective_by_name_with_its_arguments_is_a_site():
    found = graph(
        "std::bind(ncclBroadcast, a, b, n, ncclFloat, 0, comm, s)(); std::thread(&ncclBcast, a, n, t, 0, comm, s);"
    )

    assert [(s.call, s.via, s.stage_b.possible) for s in found.sites] == [
        ("ncclBroadcast", "bind", False),
        ("ncclBcast", "thread", False),
    ]


@pytest.mark.parametrize("text", ["table.add(ncclReduce);", "call = ncclReduce;", "Calls calls{.reduce = ncclReduce};"])
def test_an_address_that_is_handed_on_is_said(text: str):
    notes = graph(f"{REDUCE}\n{text}").notes

    assert any("main.cu:5: ncclReduce stands here" in n and "address" in n for n in notes)


EACH = "#define EACH(i, n) for (int i = 0; i < (n); ++i)\n"


@pytest.mark.parametrize("body", [f"EACH(i, 9) {{ {REDUCE} }}", f"EACH(i, 9) {REDUCE}"])
def test_a_loop_that_a_macro_hides_is_a_loop_and_is_not_set_up_in(body: str):
    files = {"main.cu": EACH + source(body)}
    (site,) = export_graph(Analysis(files, "main.cu")).sites
    text = transform(files, "main.cu")[1]["main.device.cu"]

    assert site.loops == ["EACH(i, 9)"]
    assert text.index("ncclx::register_all(") < text.index("EACH(i, 9)") < text.index("ncclx::AllReduce(")


def test_a_jump_back_is_a_loop():
    files = {"main.cu": source(f"int k = 0;\nagain: k++;\n{REDUCE}\nif (k < 9) goto again;")}
    (site,) = export_graph(Analysis(files, "main.cu")).sites
    text = transform(files, "main.cu")[1]["main.device.cu"]

    assert site.loops == ["goto again"]
    assert text.index("ncclx::register_all(") < text.index("again: k++")


def test_a_string_that_never_ends_is_read_once():
    found = export_graph(Analysis({"main.cu": '#define X "' + '\\"' * 40_000 + "\n" + source(REDUCE)}, "main.cu"))
    assert [site.call for site in found.sites] == ["ncclAllReduce"]


def test_a_text_that_the_grammar_cannot_recover_from_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(syntax, "MOST_S", 0.1)
    with pytest.raises(BadRequest, match=r"main\.cu took more than 0\.1 s to parse: .* a comment left open"):
        graph("for (;; " + "/* " * 20_000)
