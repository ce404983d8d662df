"""Failures of an index and its sources: full disks, huge dumps, other versions, many readers; the rest goes on."""

import io
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import TextContent

from gpu_mcp_server.errors import DiskFull
from gpu_mcp_server.knowledge.index import build as building
from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage
from gpu_mcp_server.knowledge.readers.sources import known_sources
from gpu_mcp_server.knowledge.readers.user_documents import read_documents
from gpu_mcp_server.knowledge.search.index_reader import LONGEST_QUERY, IndexReader
from gpu_mcp_server.knowledge.vectors import embedding, vector_index
from gpu_mcp_server.knowledge.vectors.vector_index import build_vectors
from gpu_mcp_server.mcp_api.server import server_from_settings
from gpu_mcp_server.settings.server_settings import Settings
from tests.knowledge.conftest import GUIDE
from tests.knowledge.readers.test_user_documents import FILLER, pdf
from tests.knowledge.vectors.test_vector_index import Words

_installed = building.installed_places


@pytest.fixture(autouse=True)
def only_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine only our own messages."""
    known = {"messages": known_sources()["messages"]}
    monkeypatch.setattr(building, "installed_places", lambda: _installed(known))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 3 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", point], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield point
    subprocess.run(["umount", "--lazy", point], check=True)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while ballast.write(b"\0" * 4096):
                pass
        except OSError:
            pass


def indexed(data_dir: Path) -> tuple[Storage, Path]:
    """Build the index of our messages."""
    storage = Storage(data_dir)
    build(storage)
    folder = storage.current()
    assert folder is not None
    return storage, folder


def test_a_disk_that_is_full_leaves_the_index_in_use_answering(small_disk: Path, tmp_path: Path):
    storage, folder = indexed(small_disk)
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "stacking.md").write_text(GUIDE)
    storage.add(tmp_path / "boxes", library="boxes", version="1")
    fill(small_disk)

    with pytest.raises(DiskFull, match="no room for the documentation's index"):
        build(storage)

    assert storage.current() == folder
    assert IndexReader(folder).ask("an illegal memory access was encountered").hits
    assert not list(storage.root.glob("building-*"))
    (small_disk / "ballast").unlink()
    assert [line.split(" ")[0] for line in build(storage).read] == ["boxes"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:chromadb.*", "ignore::ResourceWarning")
def test_vectors_for_which_there_is_no_room_leave_words(small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    storage, folder = indexed(small_disk)
    model = small_disk / "models" / embedding.MODEL
    model.mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json"):
        (model / name).touch()
    monkeypatch.setattr(vector_index, "Embedder", Words)
    fill(small_disk)

    with pytest.raises(DiskFull, match="no room"):
        build_vectors(storage, small_disk)

    assert not [path for path in storage.root.iterdir() if path.name.startswith(("building-", "vectors-"))]
    assert "are being made" in vector_index.Vectors(folder, small_disk).missing()
    assert IndexReader(folder).ask("an illegal memory access was encountered").hits


def test_a_dump_of_500_megabytes_is_named_and_left_out_and_the_rest_is_read(tmp_path: Path):
    dump = tmp_path / "site.html"
    with dump.open("wb") as file:
        file.write(b"<html><body><h1>Everything</h1>")
        file.truncate(500 << 20)
    (tmp_path / "page.html").write_text(f"<h1>Boxes</h1><p>{FILLER}</p>")

    reading = read_documents(tmp_path)

    assert reading.notes == ["site.html: 500 MB is over the limit of 64 MB a file; divide it"]
    assert [entry.title for entry in reading.entries] == ["Boxes"]


def test_a_page_of_a_million_open_tags_is_read_to_its_end(tmp_path: Path):
    (tmp_path / "deep.html").write_text("<div>" * 1_000_000 + f"<h1>Deep</h1><p>{FILLER}</p>")

    assert [entry.title for entry in read_documents(tmp_path).entries] == ["Deep"]


def test_a_pdf_that_breaks_off_gives_what_can_be_read_or_its_reason(tmp_path: Path):
    whole = pdf([FILLER + "First.", FILLER + "Second."])
    (tmp_path / "cut.pdf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.pdf").write_bytes(b"")
    (tmp_path / "zip.pdf").write_bytes(archive())
    (tmp_path / "whole.pdf").write_bytes(whole)

    reading = read_documents(tmp_path)

    assert {note.split(":")[0] for note in reading.notes} >= {"empty.pdf", "zip.pdf"}
    assert all("PDF" in note or "no text" in note for note in reading.notes)
    assert "whole.pdf" in {entry.place for entry in reading.entries}


def archive() -> bytes:
    """Return something that is no PDF."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a", "b")
    return out.getvalue()


async def test_an_index_of_a_newer_version_is_an_error_of_the_search_alone(tmp_path: Path):
    _, folder = indexed(tmp_path)
    with sqlite3.connect(folder / DATABASE) as db:
        db.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    settings = Settings(data_dir=tmp_path, index_documentation=False, toolsets=["core", "docs"])
    async with Client(server_from_settings(settings)) as client:
        asked = await client.call_tool("search_docs", {"query": "cudaMalloc"})
        built = await client.call_tool(
            "compile_kernel", {"source": "int launch(void) { return undeclared; }\n", "language": "c"}
        )

    (content,) = asked.content
    assert asked.is_error and isinstance(content, TextContent)
    assert "made by a newer version (schema 999" in content.text and "Update gpu-mcp-server" in content.text
    assert not built.is_error and built.structured_content is not None
    assert built.structured_content["status"] == "failed"


def test_an_index_that_only_a_new_one_can_replace_is_replaced_and_a_newer_one_is_not(tmp_path: Path):
    storage, folder = indexed(tmp_path)
    for schema, replaced in (("999", False), ("0", True)):
        with sqlite3.connect(folder / DATABASE) as db:
            db.execute("UPDATE meta SET value = ?", (schema,))
        build(storage)
        assert (storage.current() != folder) is replaced
    folder = storage.current()
    assert folder is not None
    (folder / DATABASE).write_bytes(b"SQLite format 3\0" + b"x" * 4096)

    build(storage)

    assert storage.current() != folder


READER = """
import json, sys
from pathlib import Path
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.index.index_store import Storage
storage, seen = Storage(Path(sys.argv[1])), set()
print("ready", flush=True)
for _ in sys.stdin:
    folder = storage.current()
    found = IndexReader(folder).ask("an illegal memory access was encountered").hits[0].name
    print(json.dumps([folder.name, found]), flush=True)
"""


def test_several_processes_read_while_one_builds(tmp_path: Path):
    storage, _ = indexed(tmp_path)
    command, pipe = [sys.executable, "-c", READER, str(tmp_path)], subprocess.PIPE
    readers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ}) for _ in range(3)]
    answers: list[list[str]] = []
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        for _ in range(3):
            build(storage, rebuild=True)
            for reader in readers:
                assert reader.stdin is not None and reader.stdout is not None
                reader.stdin.write("ask\n")
                reader.stdin.flush()
                answers.append(json.loads(reader.stdout.readline()))
    finally:
        for reader in readers:
            with reader:
                assert reader.stdin is not None
                reader.stdin.close()

    assert len({folder for folder, _ in answers}) == 3
    assert {name for _, name in answers} == {"cudaErrorIllegalAddress"}


@pytest.mark.parametrize("text", ["cudaMemcpyAsync ", "why is an illegal memory access reported here? ", "x = 700; "])
def test_ten_thousand_characters_are_an_ordinary_question(tmp_path: Path, text: str):
    _, folder = indexed(tmp_path)

    found = IndexReader(folder).ask((text * LONGEST_QUERY)[:LONGEST_QUERY])

    assert len(found.hits) <= 5 and len(found.did_you_mean) <= 5
