import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, DiskFull, NotFound
from gpu_mcp_server.store.artifacts import ABANDONED_S, Artifacts
from gpu_mcp_server.store.database import Database


@pytest.fixture
def artifacts(tmp_path: Path, db: Database) -> Artifacts:
    return Artifacts(tmp_path / "files", db)


def everything(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def test_content_comes_back_by_its_id(artifacts: Artifacts):
    artifact_id = await artifacts.put(b"hello", name="greeting.txt", media_type="text/plain")
    sha256 = hashlib.sha256(b"hello").hexdigest()
    assert artifact_id == f"b-{sha256[:16]}"
    assert await artifacts.read(artifact_id) == b"hello"
    assert await artifacts.path(artifact_id) == artifacts.blob_path(sha256)
    assert artifacts.has(sha256)
    info = await artifacts.info(artifact_id)
    assert (info.name, info.media_type, info.size_bytes) == ("greeting.txt", "text/plain", 5)


async def test_a_file_is_copied_and_equal_content_kept_once(artifacts: Artifacts, tmp_path: Path):
    (tmp_path / "big").write_bytes(b"0123456789" * 300_000)
    first = await artifacts.put(tmp_path / "big", name="big", media_type=None)
    (tmp_path / "big").unlink()
    second = await artifacts.put(b"0123456789" * 300_000, name="other name", media_type=None)
    assert first == second
    assert len(everything(artifacts.root)) == 1
    assert (await artifacts.info(first)).name == "big"


async def test_only_the_owner_may_read_the_files(artifacts: Artifacts):
    path = await artifacts.path(await artifacts.put(b"secret", name="s"))
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_two_contents_whose_hashes_start_alike_get_different_ids(artifacts: Artifacts, db: Database):
    sha256 = hashlib.sha256(b"x").hexdigest()
    await db.execute("INSERT INTO artifacts VALUES (?, 'other', 'n', NULL, 0, '')", (f"b-{sha256[:16]}",))
    assert await artifacts.put(b"x", name="x") == f"b-{sha256[:24]}"


async def test_many_tasks_put_the_same_content_at_once(artifacts: Artifacts):
    ids = await asyncio.gather(*(artifacts.put(b"same" * 1000, name=str(i)) for i in range(20)))
    assert len(set(ids)) == 1
    assert len(everything(artifacts.root)) == 1


async def test_an_unknown_id_and_a_deleted_file_are_not_found(artifacts: Artifacts):
    with pytest.raises(NotFound, match="b-nothing"):
        await artifacts.read("b-nothing")
    artifact_id = await artifacts.put(b"gone", name="g")
    (await artifacts.path(artifact_id)).unlink()
    with pytest.raises(NotFound, match="deleted"):
        await artifacts.read(artifact_id)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63])
async def test_what_is_no_hash_never_becomes_a_path(artifacts: Artifacts, name: str):
    with pytest.raises(BadRequest):
        artifacts.blob_path(name)


async def test_a_full_disk_leaves_nothing_behind_and_the_rest_readable(small_disk: Path, db: Database):
    artifacts = Artifacts(small_disk / "files", db)
    kept = await artifacts.put(b"kept", name="k")
    with pytest.raises(DiskFull, match="data_dir"):
        await artifacts.put(b"x" * (2 << 20), name="too big")
    assert await artifacts.read(kept) == b"kept"
    assert len(everything(artifacts.root)) == 1
    assert await artifacts.put(b"y" * 1000, name="fits")


async def test_a_killed_writer_leaves_no_half_of_a_file_under_its_hash(artifacts: Artifacts, db: Database):
    code = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from gpu_mcp_server.store.artifacts import Artifacts
        from gpu_mcp_server.store.database import Database

        async def main():
            async with await Database.open(Path(sys.argv[1])) as db:
                artifacts = Artifacts(Path(sys.argv[2]), db)
                for i in range(1_000_000):
                    print(await artifacts.put(bytes([i % 251]) * (1 << 20) + bytes([i // 251]), name=str(i)), flush=True)

        asyncio.run(main())
        """
    )
    command = [sys.executable, "-c", code, str(db.path), str(artifacts.root)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as writer:  # noqa: ASYNC220 - nothing else runs here
        assert writer.stdout is not None
        said = [writer.stdout.readline().strip() for _ in range(5)]
        writer.send_signal(signal.SIGKILL)
    for artifact_id in said:
        assert len(await artifacts.read(artifact_id)) == (1 << 20) + 1
    for path in everything(artifacts.root / "blobs"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


async def test_abandoned_temporary_files_are_cleaned_and_fresh_ones_kept(artifacts: Artifacts):
    await artifacts.put(b"x", name="x")
    old, fresh = artifacts.root / "tmp" / "old", artifacts.root / "tmp" / "fresh"
    for path in (old, fresh):
        path.write_bytes(b"")
    age = old.stat().st_mtime - ABANDONED_S - 1
    os.utime(old, (age, age))
    assert await artifacts.clean() == 1
    assert not old.exists()
    assert fresh.exists()
