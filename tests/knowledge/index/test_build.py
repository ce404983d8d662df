"""The index is built aside, changed in part, and read meanwhile."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, ConfigError, DiskFull
from gpu_mcp_server.knowledge.index import build as building
from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage
from gpu_mcp_server.knowledge.readers.sources import known_sources
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from tests.knowledge.conftest import GUIDE

OURS = {"messages"}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Nothing of this machine: only our own text, and what a test adds."""
    known = {key: source for key, source in known_sources().items() if key in OURS}
    monkeypatch.setattr(building, "installed_places", lambda: _installed(known))
    return Storage(tmp_path / "data")


_installed = building.installed_places


def added(storage: Storage, folder: Path, text: str = GUIDE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "stacking.md").write_text(text)
    storage.add(folder, library="boxes", version="1")
    return folder


def test_a_second_build_changes_nothing_and_a_changed_file_is_read_alone(storage: Storage, tmp_path: Path):
    folder = added(storage, tmp_path / "boxes")
    first = build(storage)
    before = storage.current()
    again = build(storage)
    (folder / "stacking.md").write_text(
        GUIDE + "\n## Painting\n\nBoxes can be painted in eight colours, and dry in an hour.\n"
    )
    third = build(storage)

    assert first.counts.entries > 10
    assert again.unchanged
    assert [line.split(" ")[0] for line in third.read] == ["boxes"]
    assert storage.current() != before


def test_a_reader_keeps_its_index_while_another_is_built(storage: Storage, tmp_path: Path):
    build(storage)
    current = storage.current()
    assert current is not None
    reader = IndexReader(current)
    added(storage, tmp_path / "boxes")
    build(storage)

    with pytest.raises(BadRequest, match="No library 'boxes'"):
        reader.ask("tower", library="boxes")
    newer = storage.current()
    assert newer is not None
    assert IndexReader(newer).ask("why does a tower fall", library="boxes").hits


def test_a_builder_that_was_killed_leaves_the_index_in_use_and_the_lock_free(storage: Storage, tmp_path: Path):
    build(storage)
    before = storage.current()
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom gpu_mcp_server.knowledge.index.index_store import Storage\n"
        "storage = Storage(Path(sys.argv[1]))\n"
        "with storage.building(), storage.new_index() as folder:\n"
        "    (folder / 'docs.sqlite').write_bytes(b'half')\n    print('half', flush=True)\n    time.sleep(600)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "data")], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    with victim:
        assert victim.stdout.readline() == b"half\n"
        with storage.building(wait=False) as had:
            assert not had
        os.kill(victim.pid, signal.SIGKILL)

    assert storage.current() == before
    added(storage, tmp_path / "boxes")
    build(storage)
    assert storage.current() != before
    assert not list(storage.root.glob("building-*"))


def test_a_full_disk_leaves_the_index_in_use(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build(storage)
    before = storage.current()
    added(storage, tmp_path / "boxes")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(building, "write_index", full)
        with pytest.raises(DiskFull, match="no room for the documentation's index"):
            build(storage)
    assert storage.current() == before
    assert not list(storage.root.glob("building-*"))


def test_an_index_of_a_newer_version_says_so(storage: Storage):
    build(storage)
    folder = storage.current()
    assert folder is not None
    with sqlite3.connect(folder / DATABASE) as db:
        db.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    with pytest.raises(ConfigError, match="made by a newer version"):
        IndexReader(folder)
    (folder / DATABASE).write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    with pytest.raises(ConfigError, match="damaged"):
        IndexReader(folder)


def test_what_was_added_and_is_gone_is_left_out(storage: Storage, tmp_path: Path):
    folder = added(storage, tmp_path / "boxes")
    build(storage)
    (folder / "stacking.md").unlink()
    folder.rmdir()

    build(storage)

    current = storage.current()
    assert current is not None
    assert {edition.source for edition in IndexReader(current).editions} == OURS
    assert storage.remove(folder)


def test_a_damaged_reading_is_read_again(storage: Storage):
    build(storage)
    for kept in (storage.root / "editions").iterdir():
        kept.write_bytes(b"\xc1 not msgpack")
    (storage.root / "current").unlink()

    assert len(build(storage).read) == 1


def test_every_described_source_is_complete():
    for source in known_sources().values():
        assert source.title and source.licence and source.files, source.id
        assert source.roots or source.repository, source.id
