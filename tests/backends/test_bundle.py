import ast
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpu_mcp_server.backends import bundle, loading
from gpu_mcp_server.backends.bundle import HOSTD, hostd_zip

SHIPPED = [*sorted(HOSTD.glob("*.py")), loading.LOADER]


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

    assert sorted(names) == sorted(["__main__.py", "pynvml.py", *(f"hostd/{p.name}" for p in HOSTD.glob("*.py"))])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_what_runs_on_hosts_is_python_3_8(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_what_runs_on_hosts_imports_the_standard_library_alone(path: Path):
    assert imported(path) - set(sys.stdlib_module_names) <= {"pynvml"}


def test_the_zip_runs_by_itself(tmp_path: Path):
    pyz = tmp_path / "hostd.pyz"
    pyz.write_bytes(hostd_zip()[1])

    done = subprocess.run(
        [sys.executable, "-I", str(pyz), "probe", str(tmp_path / "state")], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["cores"] >= 1
    assert done.stderr == ""
