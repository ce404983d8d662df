"""The MCP conformance suite against `serve --http`: every scenario that needs no fixture of its own, in both eras."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.clients import installer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

LEGACY = "2025-11-25"
MODERN = "2026-07-28"

SCENARIOS = {
    LEGACY: (
        "server-initialize",
        "ping",
        "completion-complete",
        "tools-list",
        "tools-call-error",
        "server-sse-multiple-streams",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
        "server-session-lifecycle",
    ),
    MODERN: (
        "server-stateless",
        "completion-complete",
        "tools-list",
        "tools-call-error",
        "server-sse-multiple-streams",
        "resources-list",
        "sep-2164-resource-not-found",
        "prompts-list",
        "dns-rebinding-protection",
        "caching",
        "http-header-validation",
    ),
}

NEED_A_FIXTURE = {
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
    },
}
"""Checks that call a tool named test_missing_capability, which only a server made for the suite has."""


def table() -> Iterator[Any]:
    for era, scenarios in SCENARIOS.items():
        for scenario in scenarios:
            yield pytest.param(era, scenario)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("server")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "GPU_MCP_DATA_DIR": str(home / "data")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_mcp_server", "serve", "--http", "--port", "0"],
        stderr=subprocess.PIPE,
        env=environment,
        cwd=home,
        text=True,
    )
    assert process.stderr is not None
    said = next((line for line in process.stderr if "Uvicorn running" in line), "")
    emptying = threading.Thread(target=process.stderr.read)
    emptying.start()
    yield re.findall(r"http://127\.0\.0\.1:\d+", said)[0] + "/mcp"
    process.terminate()
    process.wait()
    emptying.join()
    process.stderr.close()


@pytest.fixture(scope="module")
def checks(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What each scenario of each era found, by era and scenario."""
    suite = installer.conformance()
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for era in SCENARIOS:
        folder = tmp_path_factory.mktemp(era)
        done = subprocess.run(
            [*suite, "server", "--url", url, "--requirements", era, "-o", str(folder)],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
            cwd=folder,
            check=False,
        )
        assert "SUMMARY" in done.stdout, done.stdout + done.stderr
        for path in folder.glob("*/checks.json"):
            name = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\dZ-]+$", "", path.parent.name)
            found[era, name] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(("era", "scenario"), list(table()))
def test_the_server_conforms(checks: dict[tuple[str, str], list[dict[str, Any]]], era: str, scenario: str):
    found = checks[era, scenario]
    failed = {check["id"]: check.get("errorMessage") for check in found if check["status"] == "FAILURE"}

    assert any(check["status"] == "SUCCESS" for check in found)
    assert {name: why for name, why in failed.items() if name not in NEED_A_FIXTURE.get(scenario, ())} == {}
