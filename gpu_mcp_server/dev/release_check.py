"""Checks that a checkout can be released: wheel and sdist, built, installed in empty environments, and tried."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from gpu_mcp_server.errors import GpuMcpError

BUILD_S = 900.0
PAGES = (
    *("tests/test_documents.py", "tests/dev/test_site_links.py", "tests/test_deployment.py"),
    *("tests/recipes/agents/test_recipe_loader.py", "tests/dev/test_readme_figures.py"),
)
"""Tests of links, paths that pages name, server.json, deployment, the plugin, and the age of README's figures."""
NEEDED = ("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml")
"""What an sdist must have at its top."""


class NotReleasable(GpuMcpError):
    """A check of the release did not pass."""

    retryable = False


def check_release(root: Path, dist: Path) -> list[str]:
    """Run every check; return what passed, a line each.

    Raises:
        NotReleasable: With the first check that did not pass.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    check_versions(root, version)
    passed = [f"version {version}: pyproject.toml, server.json, the plugin and CHANGELOG.md say the same"]
    _run([sys.executable, "-m", "pytest", "-q", *PAGES], root, "links, paths and descriptions of the release")
    passed.append("links and paths of the pages, README's figures, server.json, the plugin, deployment")
    shutil.rmtree(dist, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--outdir", str(dist), str(root)], root, "wheel and sdist")
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    check_sdist(sdist)
    passed.append(f"built {wheel.name} ({wheel.stat().st_size} B) and {sdist.name} ({sdist.stat().st_size} B)")
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        for package in (wheel, sdist):
            python = _installed(Path(scratch) / package.suffix.lstrip("."), package)
            said = _run([str(python.parent / "gpu-mcp-server"), "--version"], Path(scratch), f"{package.name} starts")
            if version not in said:
                raise NotReleasable(f"{package.name} says {said.strip()!r}, not {version}.", hint="Build it anew.")
            passed.append(f"{package.name} installs in an empty environment and says {version}")
        program = Path(scratch) / "whl" / "bin" / "gpu-mcp-server"
        environment = {**os.environ, "GPU_MCP_DATA_DIR": str(Path(scratch) / "data")}
        table = _run([str(program), "demo"], Path(scratch), "the demo from the wheel", environment)
        if "correct" not in table or "cheat" not in table:
            raise NotReleasable(f"The demo's table lacks verdicts: {table[-500:]}", hint="Run the demo by hand.")
        passed.append("the demo from the wheel judges its six candidates")
        bill = [sys.executable, "-m", "cyclonedx_py", "environment", str(Path(scratch) / "whl"), "-o"]
        _run([*bill, str(dist / "sbom.cdx.json")], root, "the bill of materials")
    parts = json.loads((dist / "sbom.cdx.json").read_text(encoding="utf-8"))["components"]
    return [*passed, f"sbom.cdx.json names {len(parts)} packages"]


def check_versions(root: Path, version: str) -> None:
    """Return if every file that has the version says this one.

    Raises:
        NotReleasable: With those that say another.
    """
    server = json.loads((root / "server.json").read_text(encoding="utf-8"))
    plugin = json.loads((root / "agent_recipes" / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    found = {
        "server.json": server["version"],
        "server.json, packages": server["packages"][0]["version"],
        "agent_recipes/.claude-plugin/plugin.json": plugin["version"],
        "CHANGELOG.md": version if _is_dated(root / "CHANGELOG.md", version) else "no section with a date",
    }
    if wrong := {name: said for name, said in found.items() if said != version}:
        raise NotReleasable(f"pyproject.toml says {version}; {wrong}.", hint="Give all the same version.")


def _is_dated(changelog: Path, version: str) -> bool:
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    return bool(re.search(heading, changelog.read_text(encoding="utf-8"), re.MULTILINE))


def check_sdist(sdist: Path) -> None:
    """Return if an sdist has what it needs at its top.

    Raises:
        NotReleasable: With what it lacks.
    """
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := [name for name in NEEDED if name not in names]:
        raise NotReleasable(f"{sdist.name} lacks {', '.join(missing)}.", hint="Name them in pyproject.toml.")


def _installed(folder: Path, package: Path) -> Path:
    """Install a package into an empty environment; return its Python."""
    _run([sys.executable, "-m", "venv", str(folder)], folder.parent, "an empty environment")
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(package), "numpy"]
    _run(install, folder.parent, f"installation of {package.name}")
    return python


def _run(command: Sequence[str], folder: Path, what: str, environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotReleasable(f"{what}: no end within {BUILD_S:g} s.", hint=f"Run it by hand: {command[:4]}") from error
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise NotReleasable(f"{what}: exit code {done.returncode}.\n{said}", hint="Correct it, then check again.")
    return done.stdout
