"""Variables in the strings of a library: found whole, and left out where a text explains them."""

from pathlib import Path

import pytest

from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.readers import sources
from gpu_mcp_server.knowledge.readers.entries import Entry
from gpu_mcp_server.knowledge.readers.library_strings import variable_entries, without_explained
from gpu_mcp_server.knowledge.search.index_reader import IndexReader

PATTERN = "BOXES_[A-Z0-9]+(?:_[A-Z0-9]+)*"


def test_whole_strings_are_variables_and_parts_of_others_are_not(tmp_path: Path):
    library = tmp_path / "libboxes.so"
    library.write_bytes(
        b"\x7fELF\0BOXES_SIZE\0set BOXES_HINT to 1\0NO_BOXES_ELSE\0BOXES_DEPTH_MAX\0BOXES_SIZE\0BOXES_\0"
    )

    found = variable_entries(library, "libboxes.so", PATTERN)

    assert [(entry.kind, entry.name) for entry in found] == [("env", "BOXES_DEPTH_MAX"), ("env", "BOXES_SIZE")]
    assert "stands in the strings of libboxes.so" in found[0].text and "unknown here" in found[0].text
    (tmp_path / "empty.so").touch()
    assert variable_entries(tmp_path / "empty.so", "empty.so", PATTERN) == []


def test_a_variable_that_a_text_explains_is_left_out():
    explained = [Entry("env", ("BOXES_SIZE",), "BOXES_SIZE", "How large boxes are.")]
    strings = [Entry("env", (name,), name, "") for name in ("BOXES_SIZE", "BOXES_DEPTH")]

    assert [entry.name for entry in without_explained(strings, explained)] == ["BOXES_DEPTH"]


def test_a_string_of_a_library_that_is_installed_is_found_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    library = tmp_path / "site-packages" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0NCCL_FROBNICATE_DEPTH\0NCCL_ALGO\0")
    monkeypatch.setitem(sources._BASES, "site", lambda: [tmp_path / "site-packages"])  # pyright: ignore[reportPrivateUsage]
    storage = Storage(tmp_path / "data")
    build(storage, only={"nccl-strings", "environment"})
    folder = storage.current()
    assert folder is not None
    reader = IndexReader(folder)

    hit = reader.ask("NCCL_FROBNICATE_DEPTH", kinds=("env",)).hits[0]
    assert (hit.name, hit.match, hit.edition.library) == ("NCCL_FROBNICATE_DEPTH", "symbol", "variables")
    assert reader.ask("NCCL_ALGO").hits[0].edition.library == "environment"
    assert all(hit.edition.library != "variables" for hit in reader.ask("how deep does NCCL frobnicate").hits)
    reader.close()
