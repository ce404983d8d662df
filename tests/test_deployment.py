"""Files shipped to run the server elsewhere, and to find it: read here by the programs that read them."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gpu_mcp_server.cli.clients import PUBLISHED, one_click, remote_snippets
from gpu_mcp_server.settings.server_settings import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_server_json_is_of_this_package_and_version():
    server = json.loads((ROOT / "server.json").read_text())
    (package,) = server["packages"]
    project = PROJECT["project"]

    assert server["version"] == package["version"] == project["version"]
    assert package["identifier"] == project["name"]
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text()
    assert len(server["description"]) <= 100
    known = {f"GPU_MCP_{name.upper()}" for name in Settings.model_fields}
    assert {variable["name"] for variable in package["environmentVariables"]} <= known


def test_the_links_hold_the_command_that_starts_the_server():
    entry = {"command": PUBLISHED[0], "args": PUBLISHED[1:]}
    links = one_click(entry)
    asked = parse_qs(urlsplit(links["cursor"]).query)

    assert json.loads(base64.b64decode(asked["config"][0])) == entry
    assert asked["name"] == ["gpu"]
    assert json.loads(parse_qs(urlsplit(links["vscode"]).query)["config"][0]) == entry
    assert {urlsplit(link).scheme for link in links.values()} == {"https"}
    assert all(link in (ROOT / "README.md").read_text() for link in links.values())


def test_no_snippet_for_a_server_elsewhere_holds_a_token():
    shown = remote_snippets("https://gpu.example.org/mcp")

    assert set(shown) == {"claude", "codex", "gemini", "vscode", "cursor"}
    assert all("https://gpu.example.org/mcp" in text and "GPU_LAB_TOKEN" in text for text in shown.values())
    assert tomllib.loads(shown["codex"])["mcp_servers"]["gpu"]["bearer_token_env_var"] == "GPU_LAB_TOKEN"
    assert json.loads(shown["vscode"].partition("\n")[2])["servers"]["gpu"]["type"] == "http"


def test_the_image_is_built_from_all_that_the_wheel_needs_and_nothing_else():
    """`!NAME` lines of .dockerignore are the context; hatch says what it reads."""
    lines = (ROOT / ".dockerignore").read_text().split()
    context = {line[1:] for line in lines if line.startswith("!")}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", PROJECT["project"]["readme"], "LICENSE"}

    assert lines[0] == "*"
    assert all(any(path == name or path.startswith(f"{name}/") for name in context) for path in needed)
    assert all((ROOT / name).exists() for name in context)


def test_the_image_runs_as_an_ordinary_user_and_says_whether_it_lives():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    last = text.rpartition("\nFROM ")[2]
    users = re.findall(r"^USER (\S+)", last, re.MULTILINE)

    assert users
    assert int(users[-1]) > 0
    assert f"--uid {users[-1]}" in last
    checked = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", last, re.MULTILINE)
    assert checked is not None
    compile(json.loads(checked[1])[2], "healthcheck", "exec")


def test_systemd_reads_the_unit(tmp_path: Path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "gpu-mcp-server.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/gpu-mcp-server/bin/gpu-mcp-server", "/bin/true"))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line and "DelegateSubgroup" not in line]

    assert said == []


def test_nginx_reads_the_proxy_example(tmp_path: Path):
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip("no nginx here: apt-get install nginx-light")
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "k.pem",
        "-out",
        "c.pem",
        "-days",
        "1",
    ]
    subprocess.run([*make, "-subj", "/CN=gpu.example.org"], cwd=tmp_path, capture_output=True, check=True)
    site = (DEPLOY / "nginx.conf").read_text().replace("/etc/ssl/gpu.example.org.pem", f"{tmp_path}/c.pem")
    (tmp_path / "site").write_text(site.replace("/etc/ssl/gpu.example.org.key", f"{tmp_path}/k.pem"))
    whole = (
        f"pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}} http {{ access_log off; include {tmp_path}/site; }}"
    )
    (tmp_path / "conf").write_text(whole)
    done = subprocess.run([program, "-t", "-c", tmp_path / "conf"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
def test_the_action_shows_the_table_and_ends_as_the_comparison_does(tmp_path: Path):
    """Its script runs as GitHub runs it, with our command, on a repository whose change touches no kernel."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((DEPLOY / "kernel-ci" / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    assert "${{" not in step["run"]  # nothing of a pull request is part of the script

    command = tmp_path / "bin" / "gpu-mcp-server"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpu_mcp_server "$@"\n')
    command.chmod(0o755)
    who = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{command.parent}:{os.environ['PATH']}"
    python_path = os.pathsep.join([str(ROOT), str(ROOT / "toolsets")])
    given = {**who, "PATH": path, "PYTHONPATH": python_path, "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(tmp_path)}
    given |= {"GPU_MCP_DATA_DIR": str(tmp_path / "data"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    given |= {"BASE": "", "TARGET": "main", "HEAD": "change", "HOST": "", "TURNS": "3"}
    make = "git init -qb main . && git commit -qm 1 --allow-empty && git switch -qc change && git commit -qm 2 --allow-empty"
    subprocess.run(["bash", "-ec", make], cwd=tmp_path, env=given, check=True, capture_output=True)
    done = subprocess.run(["bash", "-ec", step["run"]], cwd=tmp_path, env=given, capture_output=True, text=True)
    assert (done.returncode, "no kernel is touched" in (tmp_path / "summary").read_text()) == (0, True), done.stderr
    failed = subprocess.run(
        ["bash", "-ec", step["run"]], cwd=tmp_path, env={**given, "BASE": "none"}, capture_output=True, text=True
    )
    assert failed.returncode == 2 and "no folder or git revision 'none'" in failed.stderr
