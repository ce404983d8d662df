import ast
import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends import bundle, deploy
from gpu_mcp_server.backends.bundle import HOSTD, hostd_zip

SHIPPED = [*sorted(HOSTD.rglob("*.py")), deploy.LOADER]


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def test_the_same_sources_give_the_same_zip():
    first = hostd_zip()
    bundle.hostd_zip.cache_clear()

    assert hostd_zip() == first
    assert hashlib.sha256(first[1]).hexdigest().startswith(first[0])


def test_the_zip_holds_hostd_and_nvml_and_nothing_else():
    names = zipfile.ZipFile(io.BytesIO(hostd_zip()[1])).namelist()

    sources = [f"hostd/{p.relative_to(HOSTD).as_posix()}" for p in HOSTD.rglob("*.py")]
    assert sorted(names) == sorted(["__main__.py", "pynvml.py", *sources])


@pytest.fixture
def other_hostd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of hostd's sources that is zipped instead of them."""
    folder = Path(shutil.copytree(HOSTD, tmp_path / "other" / "hostd"))
    monkeypatch.setattr(bundle, "HOSTD", folder)
    bundle.hostd_zip.cache_clear()
    yield folder
    bundle.hostd_zip.cache_clear()


def test_a_module_in_a_folder_is_in_the_zip_and_imported_from_it_and_changes_its_hash(
    tmp_path: Path, other_hostd: Path
):
    folder = other_hostd / "room" / "inner"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    hashes = []
    for number in (1, 2):
        (folder / "new.py").write_text(f"from ... import protocol\nNUMBER = {number}\n")
        bundle.hostd_zip.cache_clear()
        digest, content = hostd_zip()
        (tmp_path / "hostd.pyz").write_bytes(content)
        code = "import sys; sys.path.insert(0, sys.argv[1]); from hostd.room.inner import new; print(new.NUMBER)"
        command = [sys.executable, "-I", "-c", code, str(tmp_path / "hostd.pyz")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == f"{number}\n", done.stderr
        hashes.append(digest)
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("where", ["folder", "zip"])
def test_another_process_is_made_to_run_the_same_hostd(tmp_path: Path, where: str):
    (tmp_path / "hostd.pyz").write_bytes(hostd_zip()[1])
    place = str(HOSTD.parent if where == "folder" else tmp_path / "hostd.pyz")
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from hostd import own_code; "
    code += "print(json.dumps(own_code.hostd_argv(['none'])))"
    told = subprocess.run([sys.executable, "-I", "-c", code, place], capture_output=True, text=True, check=True)

    done = subprocess.run([*json.loads(told.stdout), str(tmp_path)], capture_output=True, text=True, check=False)

    assert place in " ".join(json.loads(told.stdout))
    assert (done.returncode, done.stderr) == (2, "hostd: unknown verb 'none'; known: serve, probe\n")


def test_what_runs_on_hosts_is_python_3_8():
    offences: list[str] = []
    for path in SHIPPED:
        try:
            ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        except SyntaxError as error:
            offences.append(f"{path.name}:{error.lineno}: {error.msg}")

    assert not offences, "\n".join(offences)


def test_what_runs_on_hosts_imports_the_standard_library_alone():
    allowed = {*sys.stdlib_module_names, "pynvml"}
    offences = [f"{path.name} imports {name}" for path in SHIPPED for name in sorted(imported(path) - allowed)]

    assert not offences, "\n".join(offences)


def test_what_runs_on_hosts_imports_nothing_from_beyond_its_package():
    offences: list[str] = []
    for path in SHIPPED:
        deepest = len(path.relative_to(HOSTD).parts) if path.is_relative_to(HOSTD) else 0
        nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
        offences += [f"{path.name}:{node.lineno}" for node in nodes if node.level > deepest]

    assert not offences, "\n".join(offences)


def test_the_zip_runs_by_itself(tmp_path: Path):
    pyz = tmp_path / "hostd.pyz"
    pyz.write_bytes(hostd_zip()[1])

    done = subprocess.run(
        [sys.executable, "-I", str(pyz), "probe", str(tmp_path / "state")], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["cores"] >= 1
    assert done.stderr == ""
