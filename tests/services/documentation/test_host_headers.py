"""Headers come from a host by a job in its sandbox, are unpacked with suspicion, and answer in the host's version."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.errors import JobBroken
from gpu_mcp_server.knowledge.index import build as building
from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.services.documentation import host_headers
from gpu_mcp_server.services.documentation.host_headers import Fetched, HostHeaders
from gpu_mcp_server.settings.server_settings import LocalHost
from gpu_mcp_server.workers import pack_headers
from tests.knowledge.conftest import BOXES, HEADER
from tests.laboratory import Folder, laboratory


async def test_a_hosts_headers_stand_before_those_of_this_machine_until_they_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with Folder() as there:
        (there / "v3").mkdir(mode=0o755)
        (there / "v3" / "boxes.h").write_text(HEADER.replace("MAJOR 2", "MAJOR 3"))
        (tmp_path / "boxes.h").write_text(HEADER)
        there_source = replace(BOXES, roots=(f"{there}/v3",))
        monkeypatch.setattr(host_headers, "known_sources", lambda: {"boxes": there_source})
        monkeypatch.setattr(building, "known_sources", lambda: {"boxes": there_source})
        here = building.place_at(BOXES, tmp_path)
        monkeypatch.setattr(building, "installed_places", lambda: [here])
        async with laboratory(hosts={"far": LocalHost(kind="local", roots=[str(there)])}) as lab:
            fetched = await HostHeaders(lab.settings, lab.jobs.runner).fetch("far")
            storage = Storage(lab.settings.data_dir)

            assert fetched.places == [{"source": "boxes", "folder": "0", "root": f"{there}/v3"}]
            assert versions(storage) == ["3.1", "2.1"]
            assert storage.forget_host("../editions") is False
            assert storage.forget_host("far") and versions(storage) == ["2.1"]


def versions(storage: Storage) -> list[str]:
    build(storage)
    current = storage.current()
    assert current is not None
    library = IndexReader(current)
    assert library.ask("boxesFree").hits[0].edition.version == library.editions[0].version
    return [edition.version for edition in library.editions]


@pytest.mark.parametrize("name", ["../../escaped.h", "/escaped.h", "link.h"])
def test_an_archive_that_would_write_elsewhere_is_refused(name: str, tmp_path: Path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        if name == "link.h":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)

    with pytest.raises(JobBroken, match="is not taken"):
        host_headers._unpack(packed.getvalue(), tmp_path / "in")
    with pytest.raises(JobBroken, match="cannot be read"):
        host_headers._unpack(b"\x1f\x8b not an archive", tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_what_is_too_much_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "boxes.h").write_text(HEADER)
    (tmp_path / "huge.h").write_text("x" * 10_000)
    monkeypatch.setattr(pack_headers, "FILE_BYTES", 9_000)
    monkeypatch.chdir(tmp_path)
    source = {"id": "boxes", "roots": [str(tmp_path)], "files": ["*.h"], "version_file": "boxes.h"}

    pack_headers.main([json.dumps({"sources": [source], "sites": []})])

    said = json.loads((tmp_path / pack_headers.LISTED).read_text())
    assert said["left_out"] == [str(tmp_path / "huge.h")]
    assert Fetched("far", said["places"], []).places[0]["source"] == "boxes"
    with tarfile.open(tmp_path / pack_headers.PACKED) as archive:
        assert archive.getnames() == ["0/boxes.h"]
