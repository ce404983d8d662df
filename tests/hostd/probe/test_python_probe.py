"""Packages of an interpreter, as the probe of a host reads them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.probe import python_probe


@pytest.mark.parametrize(
    ("folder", "version"),
    [
        ("torch-2.9.0+cu130.dist-info", "2.9.0+cu130"),
        ("Torch-2.9.0a0+5228986c39.nv25.6.dist-info", "2.9.0a0+5228986c39.nv25.6"),
        ("torch-1.13.1-py3.11.egg-info", "1.13.1"),  # Debian's
        ("torch.egg-info", "2.9.0a0"),  # used where it was built
        ("torch_geometric-2.6.1.dist-info", None),
    ],
)
def test_a_version_is_read_from_the_name_of_its_folder(tmp_path: Path, folder: str, version: str | None):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0a0\n")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(tmp_path / 'missing')!r}]\n{python_probe.ABOUT}"
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(said)["torch"] == version
