"""Search for pasted text: messages, settings of variables, and names of files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.knowledge.index.index_schema import write_index
from gpu_mcp_server.knowledge.index.index_store import DATABASE
from gpu_mcp_server.knowledge.readers.reader_dispatch import read_place
from gpu_mcp_server.knowledge.readers.sources import known_sources, place_at
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.search.known_messages import parts_of_message
from tests.knowledge.conftest import BOXES, HEADER, edition

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexReader]:
    """An index of our messages and variables, of boxes, and of a library of CUDA and its twin of HIP."""
    folder = tmp_path_factory.mktemp("pasted")
    ours = [
        read_place(place_at(known_sources()[name], ROOT / "knowledge_base" / name))  # type: ignore[arg-type]
        for name in ("messages", "environment")
    ]
    sides = [
        edition(
            folder / prefix,
            replace(BOXES, id=prefix, library=prefix, family=prefix),
            {"boxes.h": f"/** Shreds the cartons of a stream. */\nint {prefix}CartonsShred(void *cartons);\n"},
        )
        for prefix in ("hip", "cuda")
    ]
    write_index(folder / DATABASE, [edition(folder / "boxes", BOXES, {"boxes.h": HEADER}), *ours, *sides])
    opened = IndexReader(folder)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("nvlink error : Undefined reference to '_Z6squarei' in '/tmp/main.o'", "undefined reference to …"),
        ("undefined reference to boxesFree when linking", "undefined reference to …"),
        ("MPI_Allreduce crashes with message truncated", "message truncated"),
        ("boxes.cu:3:10: fatal error: nccl.h: No such file or directory", "fatal error: … No such file or directory"),
        ("ptxas fatal : Value 'sm_120' is not defined for option 'gpu-name'", "is not defined for option 'gpu-name'"),
        ("/usr/bin/ld: cannot find -lnccl", "cannot find -l…"),
    ],
)
def test_a_message_that_is_explained_stands_first_even_beside_a_name(pasted: IndexReader, text: str, title: str):
    assert pasted.ask(text).hits[0].title == title


@pytest.mark.parametrize("text", ["BOXES_VERBOSE=700", "main.cu(700): boxes", "while (size == 700) of boxes", "w=700"])
def test_a_number_that_is_no_code_leads_to_no_error(pasted: IndexReader, text: str):
    assert all(hit.match != "code" for hit in pasted.ask(text).hits)


@pytest.mark.parametrize("text", ["rc = 700", "boxes failed (700)", "an address is locked (700)", "boxes error 700"])
def test_a_number_that_is_a_code_leads_to_its_error(pasted: IndexReader, text: str):
    assert any(hit.match == "code" for hit in pasted.ask(text).hits)


def test_a_variable_that_is_set_is_found_by_its_name(pasted: IndexReader):
    hit = pasted.ask("export HSA_OVERRIDE_GFX_VERSION=10.3.0").hits[0]
    assert (hit.name, hit.match) == ("HSA_OVERRIDE_GFX_VERSION", "symbol")


def test_a_file_is_no_missing_name_and_an_argument_beside_a_missing_name_is_none(pasted: IndexReader):
    assert pasted.ask("where is cuda_runtime.h").missing == []
    (said,) = pasted.ask("cutensorCreate(&handle, my_mode_a)").missing
    assert said.startswith("nothing indexed is called cutensorCreate; cuTENSOR is not indexed here")


def test_fixed_parts_of_a_message_end_where_its_words_do():
    assert parts_of_message("cannot find -l…") == [" cannot find l"]
    assert parts_of_message("calling a … from b") == [" calling a ", " from b "]


def test_a_function_of_both_sides_is_one_hit_of_the_side_that_is_meant(pasted: IndexReader):
    for query, shown, other in (
        ("shred the cartons of a stream", "cudaCartonsShred", "hipCartonsShred"),
        ("shred the cartons of a stream on AMD", "hipCartonsShred", "cudaCartonsShred"),
    ):
        hits = [hit for hit in pasted.ask(query).hits if hit.name.endswith("CartonsShred")]
        assert [hit.name for hit in hits] == [shown]
        assert [uri.rsplit("/", 1)[-1] for uri in hits[0].also] == [other]
