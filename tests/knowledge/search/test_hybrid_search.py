"""Hits for each kind of question."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.knowledge.index.index_schema import write_index
from gpu_mcp_server.knowledge.index.index_store import DATABASE
from gpu_mcp_server.knowledge.readers.reader_dispatch import read_place
from gpu_mcp_server.knowledge.readers.sources import InstalledSource, added_source, known_sources, place_at
from gpu_mcp_server.knowledge.search.citations import add_citation_scores
from gpu_mcp_server.knowledge.search.error_lookup import address_of, error_lines
from gpu_mcp_server.knowledge.search.hybrid_search import Neighbours, limit_own_guides
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.search.missing_names import known_libraries, library_of
from gpu_mcp_server.knowledge.search.ranking import sort_by_score, words_of
from tests.knowledge.conftest import BOXES, HEADER, edition

ROOT = Path(__file__).parents[3]


def first(library: IndexReader, query: str, **options: str) -> tuple[str, str]:
    hit = library.ask(query, **options).hits[0]  # type: ignore[arg-type]
    return hit.name, hit.match


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("boxesMoveAsync", ("boxesMoveAsync", "symbol")),
        ("what does boxesMoveAsync(box, src) return?", ("boxesMoveAsync", "symbol")),
        ("BOXESMOVEASYNC_", ("boxesMoveAsync", "symbol")),
        ("boxesMoveAsinc", ("boxesMoveAsync", "similar")),
        ("boxes error 700", ("boxesErrorLocked", "code")),
        ("701", ("boxesErrorFull", "code")),
        ("a box was opened that is locked", ("boxesErrorLocked", "words")),
        ("move bytes without blocking", ("boxesMoveAsync", "words")),
        ("my tower of heavy boxes falls over", ("Stacking boxes", "words")),
    ],
)
def test_a_question_finds(library: IndexReader, query: str, found: tuple[str, str]):
    assert first(library, query) == found


def test_a_wrong_name_is_told_from_a_right_one(library: IndexReader):
    assert library.ask("boxesFreeAll").did_you_mean[0] == "boxesFree"
    assert library.ask("boxesFree").did_you_mean == []


@pytest.mark.parametrize(
    ("query", "missing"),
    [
        ("cudnnCreate", "; cuDNN is not indexed here: pip install --no-deps nvidia-cudnn-cu13 beside the server"),
        ("cute.make_layout", "; CuTe DSL is not indexed here: pip install nvidia-cutlass-dsl beside the server"),
        ("what does NCCL_P2P_DISABLE do?", "; NCCL is not indexed here: pip install --no-deps nvidia-nccl-cu13"),
        ("cutlass::gemm::Gemm", "; CUTLASS is not indexed here: gpu-mcp-server docs add FOLDER --source cutlass-guide"),
        ("nvmlDeviceGetName", "; NVML is not indexed here: gpu-mcp-server docs add PATH --library nvml. Until then: "),
        (
            "wgmma.mma_async.sync.aligned.m64n128k16",
            "; PTX is not indexed here: pip install --no-deps nvidia-cuda-cccl",
        ),
        ("boxes_frobnicate", "nothing indexed is called boxes_frobnicate"),
    ],
)
def test_a_name_that_nothing_has_is_said_to_be_missing(library: IndexReader, query: str, missing: str):
    (said,) = library.ask(query).missing

    assert said.startswith("nothing indexed is called ")
    assert missing in said


def test_a_missing_name_beside_a_known_one_is_said_and_words_of_the_asker_are_not(library: IndexReader):
    answer = library.ask("boxesFree or cudnnDestroy of my_own_handle")

    assert answer.hits[0].name == "boxesFree"
    assert [said.split(";")[0] for said in answer.missing] == ["nothing indexed is called cudnnDestroy"]


def test_a_missing_name_of_a_library_that_is_indexed_is_said_to_be_none_of_it(tmp_path: Path):
    source = replace(BOXES, library="cudnn", family="cudnn")
    write_index(tmp_path / DATABASE, [edition(tmp_path / "boxes", source, {"boxes.h": HEADER})])
    library = IndexReader(tmp_path)

    assert library.ask("cudnnFrobnicate").missing == [
        "nothing indexed is called cudnnFrobnicate; of cuDNN there is cudnn 2.1, without an entry of this name"
    ]
    library.close()


def test_a_page_of_a_missing_name_is_said_to_be_missing_before_its_look_alikes(library: IndexReader):
    with pytest.raises(NotFound) as told:
        library.page("doc://cudnn/9/function/cudnnCreate")
    assert "Nothing indexed is called cudnnCreate; cuDNN is not indexed here: " in told.value.hint
    with pytest.raises(NotFound, match=r"^There is no document") as told:
        library.page("boxesFrees")
    assert told.value.hint.startswith("Nothing indexed is called boxesFrees. Look-alikes: doc://boxes/")
    with pytest.raises(NotFound) as told:
        library.page("doc://boxes/1.0/function/boxesFree")
    assert told.value.hint == "The name is at doc://boxes/2.1/function/boxesFree."


def test_every_known_library_says_how_it_is_added_and_what_is_found_without_it():
    sources = known_sources()
    for each in known_libraries():
        assert each.without and not each.without.endswith(".")
        assert bool(each.repository) == bool(each.source) and not (each.package and each.repository)
        if each.source:
            assert sources[each.source].repository.rsplit("/", 1)[-1] == each.repository.rsplit("/", 1)[-1]
    guides = {path.stem for path in (Path(__file__).parents[3] / "knowledge_base" / "guides").glob("*.md")}
    named = {word for each in known_libraries() for word in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", each.without)}
    assert named - {"look-alikes"} <= guides


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("cudaMalloc", "CUDA"), ("cuTensorMapEncodeTiled", "CUDA"), ("cutensorCreate", "cuTENSOR"), ("cub", "CCCL"),
        ("cub::DeviceScan", "CCCL"), ("cubic", None), ("cute::Layout", "CUTLASS"), ("cute.make_layout", "CuTe DSL"),
        ("hipblasSgemm", "hipBLAS"), ("hipMalloc", "HIP"), ("T.gemm", "TileLang"), ("t.gemm", None), ("clamp", None),
        ("clEnqueueNDRangeKernel", "OpenCL"), ("tcgen05.mma", "PTX"), ("omp_get_wtime", "OpenMP"), ("my_kernel", None),
    ],
)  # fmt: skip
def test_a_name_tells_its_library_by_its_beginning(name: str, title: str | None):
    library = library_of(name)
    assert (library.title if library else None) == title


@pytest.mark.parametrize("query", ["boxesFree", "boxesSeal", "boxes error 700", "move bytes without blocking"])
def test_what_some_entry_has_is_not_said_to_be_missing(library: IndexReader, query: str):
    assert library.ask(query).missing == []


def test_the_preferred_version_answers_and_the_other_is_named(library: IndexReader):
    answer = library.ask("boxesSeal")

    assert answer.notes == ["boxesSeal exists in boxes 3.0, not in 2.1."]
    assert all(hit.edition.version != "3.0" for hit in answer.hits)
    assert first(library, "boxesSeal", version="3.0") == ("boxesSeal", "symbol")


def test_a_version_that_is_not_there_is_said(library: IndexReader):
    answer = library.ask("boxesFree", library="boxes", version="9")

    assert answer.notes[0] == (
        "Version 9 is not indexed; there is boxes 2.1, boxes 3.0. Answered from what is installed."
    )
    assert answer.hits[0].edition.version == "2.1"


def test_a_library_that_is_not_there_is_an_error_that_names_those_that_are(library: IndexReader):
    with pytest.raises(BadRequest, match=r"There is: boxes, manual\. Add your own"):
        library.ask("boxesFree", library="crates")


def test_a_kind_narrows(library: IndexReader):
    assert {hit.kind for hit in library.ask("boxes", kinds=["guide"]).hits} == {"guide"}
    with pytest.raises(BadRequest, match="no kind 'recipe'"):
        library.ask("boxes", kinds=["recipe"])


@pytest.mark.parametrize("query", ['"', "* OR (", 'NEAR("a" b)', "a" * 9_999, "\0", "汉字 boxes", "- - -"])
def test_no_text_breaks_the_search(library: IndexReader, query: str):
    library.ask(query)


def test_an_empty_and_an_endless_query_are_refused(library: IndexReader):
    with pytest.raises(BadRequest, match="empty"):
        library.ask("  \n")
    with pytest.raises(BadRequest, match="at most 10000"):
        library.ask("x" * 10_001)


def test_meaning_is_fused_with_words_and_a_name_still_stands_first(library: IndexReader):
    def dense(_: str, limit: int) -> Neighbours:
        rows = library.db.execute("SELECT id FROM entry WHERE kind = 'macro'")
        return Neighbours([row[0] for row in rows][:limit])

    hits = library.ask("boxesFree", dense=dense).hits
    assert (hits[0].name, hits[0].match) == ("boxesFree", "symbol")
    assert {hit.match for hit in library.ask("cardboard", dense=dense).hits} == {"meaning"}


def test_what_a_section_names_stands_behind_it_and_gains_the_less_the_more_it_names(library: IndexReader):
    assert first(library, "why does a tower fall") == ("Stacking boxes", "words")
    assert [hit.name for hit in library.ask("centre of gravity").hits] == ["Stacking boxes", "boxesMoveAsync"]
    assert library.ask("centre of gravity").hits[1].match == "cited"

    raised = add_citation_scores({1: 0.1, 2: 0.04, 3: 0.02}, {1: [3, 4, 5, 6], 2: [6]})
    assert sort_by_score(raised) == [1, 6, 3, 4, 5, 2]
    assert raised[3] == pytest.approx(0.07) and raised[4] == pytest.approx(0.05)
    assert raised[6] == pytest.approx(0.09)
    assert add_citation_scores({1: 0.1, 2: 0.09}, {1: [2]})[2] < 0.1


def test_our_own_texts_leave_room_for_the_reference_and_names_stand_where_they_are(library: IndexReader):
    reference = library.ask("boxesFree").hits[0]
    guide = replace(reference, match="words", edition=replace(reference.edition, library="guides"))
    entry = replace(reference, match="words")

    assert limit_own_guides([guide] * 4 + [entry] * 4) == [*[guide] * 3, *[entry] * 2, guide, *[entry] * 2]
    assert limit_own_guides([guide] * 4) == [guide] * 4
    sure = replace(guide, match="symbol")
    assert limit_own_guides([sure] * 4 + [entry]) == [*[sure] * 4, entry]


def test_a_page_is_had_by_address_and_by_name_and_names_others(library: IndexReader):
    page = library.page("doc://boxes/2.1/function/boxesMoveAsync")

    assert library.page("boxesMoveAsync").uri == page.uri
    assert library.named_in(page) == ["doc://boxes/2.1/function/boxesFree"]


def test_an_address_that_names_nothing_says_what_is_near(library: IndexReader):
    with pytest.raises(NotFound, match=r"doc://boxes/2\.1/function/boxesFree"):
        library.page("doc://boxes/2.1/function/boxesFrees")


def test_names_complete(library: IndexReader):
    assert library.names(library="boxes", version="2.1", kind="function", prefix="boxesM") == ["boxesMoveAsync"]


def test_a_compilers_complaint_leads_to_the_entry_of_the_name(library: IndexReader):
    assert address_of(library, 'identifier "boxesMoveAsinc" is undefined') == "doc://boxes/2.1/function/boxesMoveAsync"
    assert address_of(library, "expected a ;") is None


def test_questions_are_looked_for_in_parts_and_in_both_spellings():
    assert words_of("How do I initialise ncclCommSplit by colour?") == [
        *("initialise", "initialize", "ncclCommSplit", "nccl", "comm", "split", "colour", "color"),
    ]


def test_lines_of_output_that_are_errors_are_told_from_others():
    output = "all fine, no error\nCUDA error at a.cu:3 code=700(boxesErrorLocked)\nhello\nRuntimeError: NCCL Error 2: unhandled"

    assert error_lines(output) == output.splitlines()[1:2] + output.splitlines()[3:]


def test_porting_questions_find_the_name_on_the_other_side_and_an_error_is_no_question_about_its_type(tmp_path: Path):
    cuda = "typedef enum { cudaSuccess = 0 } cudaError;\n/** Frees memory. */\ncudaError cudaFree(void *memory);\n"
    hip = "/** Frees what hipMalloc gave. */\nint hipFree(void *memory);\n"
    sources = {name: replace(BOXES, id=name, library=name, family=name) for name in ("cuda", "rocm")}
    editions = [
        edition(tmp_path / "cuda", sources["cuda"], {"boxes.h": cuda}),
        edition(tmp_path / "rocm", sources["rocm"], {"boxes.h": hip}),
    ]
    write_index(tmp_path / DATABASE, editions)
    ported = IndexReader(tmp_path)

    assert [hit.name for hit in ported.ask("what is cudaFree in HIP").hits][:2] == ["hipFree", "cudaFree"]
    assert first(ported, "hipFree on NVIDIA") == ("cudaFree", "symbol")
    assert first(ported, "hipFree") == ("hipFree", "symbol")
    assert first(ported, "cuda error") == ("cudaError", "symbol")
    assert all(hit.match == "words" for hit in ported.ask("CUDA error: invalid argument").hits)


def test_a_name_in_a_users_table_is_found_and_the_place_that_matches_is_shown(tmp_path: Path):
    folder = tmp_path / "lathe"
    folder.mkdir()
    (folder / "lathe.md").write_text(
        "# Lathe\n\nIt turns shafts of every kind and length. Oil the spindle with latheOil before each long cut.\n"
        "\n| Error | Meaning |\n| --- | --- |\n| LATHE_ERR_HOT | the spindle is above 80 degrees |\n"
    )
    own = InstalledSource(added_source(folder, "lathe", "1"), folder, "1", (folder / "lathe.md",))
    write_index(tmp_path / DATABASE, [edition(tmp_path / "boxes", BOXES, {"boxes.h": HEADER}), read_place(own)])
    library = IndexReader(tmp_path)

    hit = library.ask("what is LATHE_ERR_HOT?").hits[0]
    assert (hit.name, hit.match, hit.uri) == ("LATHE_ERR_HOT", "symbol", "doc://lathe/1/term/LATHE_ERR_HOT")
    assert library.ask("oil for the spindle").hits[0].summary == "Oil the spindle with latheOil before each long cut."
    named = library.ask("latheOil(spindle)")
    assert named.hits[0].name == "Lathe"
    assert named.missing == ["nothing indexed is called latheOil; the first hits have it in their text"]
    library.close()


def test_a_message_is_found_first_by_its_number_and_by_each_of_its_names(tmp_path: Path):
    ours = read_place(place_at(known_sources()["messages"], ROOT / "knowledge_base" / "messages"))  # type: ignore[arg-type]
    write_index(tmp_path / DATABASE, [edition(tmp_path / "boxes", BOXES, {"boxes.h": HEADER}), ours])
    library = IndexReader(tmp_path)
    for asked in (
        "cudaErrorIllegalAddress",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA error 700",
        "cuda failure 700 at x.cu",
    ):
        assert library.ask(asked).hits[0].name == "cudaErrorIllegalAddress", asked
    assert library.ask("CUDA error 209").hits[0].name == "cudaErrorNoKernelImageForDevice"
    assert library.ask("boxes error 700").hits[0].name == "boxesErrorLocked", "a library that is named has its own"
    library.close()


def test_a_question_in_words_with_a_short_type_is_no_missing_name(library: IndexReader):
    assert library.ask("boxes of fp16 or bf16 with int8").missing == []
    assert library.ask("fp16").missing == ["nothing indexed is called fp16"]
