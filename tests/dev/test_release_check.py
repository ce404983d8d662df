"""Reasons that hold a release back before anything is built."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from gpu_mcp_server.dev.release_check import NEEDED, NotReleasable, check_release, check_sdist, check_versions

ROOT = Path(__file__).parents[2]


def test_all_files_of_this_checkout_say_one_version():
    check_versions(ROOT, json.loads((ROOT / "server.json").read_text())["version"])


def test_a_version_that_one_file_does_not_say_is_named(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "server.json").write_text('{"version": "0.2.0", "packages": [{"version": "0.1.0"}]}')
    (tmp_path / "agent_recipes" / ".claude-plugin").mkdir(parents=True)
    (tmp_path / "agent_recipes" / ".claude-plugin" / "plugin.json").write_text('{"version": "0.2.0"}')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.2.0]\n\n## [0.1.0] - 2026-11-27\n")

    with pytest.raises(NotReleasable) as refused:
        check_release(tmp_path, tmp_path / "dist")
    assert "says 0.2.0" in str(refused.value)
    assert "'server.json, packages': '0.1.0'" in str(
        refused.value
    ) and "'CHANGELOG.md': 'no section with a date'" in str(refused.value)


def test_an_sdist_without_a_file_that_it_needs_is_refused(tmp_path: Path):
    path = tmp_path / "p-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in NEEDED[:-1]:
            archive.addfile(tarfile.TarInfo(f"p-1/{name}"), io.BytesIO())
    with pytest.raises(NotReleasable, match=r"lacks pyproject\.toml"):
        check_sdist(path)
