"""The command line of somebody who is logged in: it works at the server, and with --local on this machine."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.bridge.command_session import CommandSession, target_in
from gpu_mcp_server.bridge.kept_tokens import keep_token
from gpu_mcp_server.errors import PathRefused
from tests.bridge.lines import line_to
from tests.commands import shared_commands
from tests.laboratory import Folder
from tests.web.site import Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


class Laptop:
    """A home, logged in at a server."""

    def __init__(self, home: Path, url: str, token: str) -> None:
        self.project = home / "project"
        self.project.mkdir(parents=True)
        self.environment = {
            "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "PATH": os.environ["PATH"],
            "GPU_MCP_DATA_DIR": str(home / "data"), "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            keep_token(url, token)

    async def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder; the server is in this process, so it must not wait."""
        run = shared_commands().run
        return await asyncio.to_thread(run, *words, env=self.environment, cwd=self.project, timeout=90)

    async def told(self, *words: str) -> Any:
        """Run a command that must succeed, and return its JSON."""
        done = await self.run(*words, "--json")
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)


async def test_work_goes_to_the_server_and_comes_back(site: Served, tmp_path: Path):
    laptop = Laptop(tmp_path, site.url, await site.token("ada"))
    (laptop.project / "data.txt").write_text("exes\n")
    (laptop.project / ".env").write_text("A=1\n")
    ran = await laptop.run(
        "run",
        "--push",
        ".",
        "--",
        "sh",
        "-c",
        "cat data.txt; echo err >&2; head -c 3000000 /dev/zero > big.bin; exit 3",
    )
    listed = (await laptop.told("jobs"))["jobs"]
    logs = await laptop.run("logs", listed[0]["job_id"])
    followed = await laptop.run("logs", "-f", listed[0]["job_id"])
    status = await laptop.told("call", "job_status", "--args", json.dumps({"job_id": listed[0]["job_id"]}))
    big = next(o for o in status["outputs"] if o["path"] == "big.bin")
    saved = await laptop.told("artifact", "save", big["artifact_id"], "big.out")
    refused = await laptop.run("artifact", "save", big["artifact_id"], "big.out")
    pulled = await laptop.told("pull", status["workspace_id"], "back")
    again = await laptop.told("pull", status["workspace_id"], "back")
    (laptop.project / "back" / "data.txt").write_text("mine")
    kept = await laptop.run("pull", status["workspace_id"], "back")

    assert (ran.stdout, ran.returncode) == ("exes\n", 3), ran.stderr
    assert "err\n" in ran.stderr and ".env" in ran.stderr and f"at {site.url}" in ran.stderr
    assert logs.stdout == followed.stdout == "exes\n"
    assert saved["size_bytes"] == 3_000_000 and (laptop.project / "big.out").stat().st_size == 3_000_000
    assert refused.returncode == 1 and "--force" in refused.stderr
    assert sorted(pulled["files"]) == sorted(again["files"]) == ["big.bin", "data.txt"]
    assert kept.returncode == 1 and "data.txt is there already" in kept.stderr
    assert f"artifact save {big['artifact_id']} FILE" in status["note"]


async def test_local_means_this_machine_and_other_commands_mean_it_anyway(site: Served, tmp_path: Path):
    with Folder() as home:
        laptop = Laptop(home, site.url, await site.token("ada"))
        (laptop.project / "a").write_text("a")
        there = await laptop.run("run", "--push", ".", "--detach", "--", "true")
        own = await laptop.run("--local", "run", "--push", ".", "--", "cat", "a")
        here = await laptop.told("--local", "jobs")
        listed = await laptop.told("jobs", "--limit", "1")
        toolsets = await laptop.run("--toolsets", "core", "call", "gpu_status")
        told = await laptop.run("history", "p-none", "--export-branch", "b")
        await laptop.told("logout", site.url)
        after = await laptop.told("jobs")
        twice = await laptop.run("logout", site.url)

    assert [job["job_id"] for job in listed["jobs"]] == [there.stdout.strip()]
    assert own.stdout == "a" and [job["command"] for job in here["jobs"]] == ["cat a"], own.stderr
    assert [job["job_id"] for job in after["jobs"]] == [job["job_id"] for job in here["jobs"]]
    assert twice.returncode == 2
    assert toolsets.returncode == 2 and "--local" in toolsets.stderr
    assert told.returncode == 2 and "--local" in told.stderr


async def test_another_users_things_are_as_unknown_as_those_that_never_were(site: Served, tmp_path: Path):
    async with site.client(await site.token("ada")) as client:
        made = (await client.call_tool("write_files", {"files": {"a": "a"}})).structured_content
    eve, at = await site.token("eve"), (made or {})["workspace_id"]
    paths = [f"/data/workspaces/{at}", f"/data/workspaces/{at}/files/a", "/data/artifacts/b-0000000000000000"]
    paths += ["/data/jobs/j-1/output?stdout=0&stderr=0", f"/data/workspaces/{at}/files/..%2F..%2Flab.db"]
    answers = [await site.ask("GET", path, eve) for path in paths]
    own = await site.ask("GET", paths[1], await site.token("ada"), headers={"Range": "bytes=0-0"})
    up = await site.ask("GET", f"/data/workspaces/{at}/files/..%2F..%2Flab.db", await site.token("ada"))

    assert [a.status_code for a in answers[:4]] == [404] * 4 and answers[4].status_code in (400, 404)
    assert (own.status_code, own.content, up.status_code) == (206, b"a", 400)
    assert own.headers["content-disposition"].startswith("attachment")


async def test_a_download_goes_on_where_its_line_broke(site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    content, target = os.urandom(20 << 20), tmp_path / "t.bin"
    lab = await site.lab()
    artifact_id = await lab.store.artifacts.put(content, name="t.bin")
    async with line_to(site.url) as line:
        keep_token(line.url, await site.token("root", "admin"))
        (tmp_path / "t.bin.part").write_bytes(b"of something else")

        async def says(text: str) -> None:
            return

        async def cut() -> None:
            part = tmp_path / "t.bin.part"
            while not part.exists() or not 2 << 20 < part.stat().st_size < 15 << 20:
                await asyncio.sleep(0)
            line.cut()

        line.delay_s = 0.01
        cutting = asyncio.create_task(cut())
        async with CommandSession.open(line.url) as session:
            size = await session.save(artifact_id, target, says)
        cutting.cancel()

    assert size == len(content) and target.read_bytes() == content
    assert not (tmp_path / "t.bin.part").exists()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "out/x", ".."])
def test_no_servers_file_lands_outside_of_its_folder(tmp_path: Path, path: str):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PathRefused):
        target_in(tmp_path / "in", path)


async def test_an_admin_looks_after_users_from_a_laptop_and_nobody_else_does(site: Served, tmp_path: Path):
    boss = await site.token("boss", "admin")
    laptop = Laptop(tmp_path, site.url, boss)
    made = await laptop.told("token", "create", "new", "--project", "p", "--scope", "read")
    await laptop.told("user", "set", "new", "--disk-bytes", "1000")
    users = {user["name"]: user for user in await laptop.told("user", "list")}
    revoked = await laptop.told("token", "revoke", made["token_id"])
    elevated = await laptop.run("token", "create", "other", "--scope", "admin")

    async def asked(token: str, call: str, *args: Any, **named: Any) -> int:
        body = json.dumps({"call": call, "args": args, "named": named})
        return (await site.ask("POST", "/admin/team", token, content=body)).status_code

    run = await site.token("ada")
    refused = [
        await asked(run, "tokens.list"),
        await asked(boss, "tokens.create", "boss", ["admin"]),
        await asked(boss, "tokens.create", "boss", scopes=["admin"]),
        await asked(boss, "tokens.create", "boss", ["run"], kind="session"),
        await asked(boss, "users.put", "boss", webhook="http://127.0.0.1/"),
        await asked(boss, "db.execute", "DELETE FROM users"),
        await asked(boss, "users.__class__"),
        await asked(boss, "users.get", "a", "b"),
        await asked(boss, "users.put", "boss", weight="x"),
    ]

    assert users["new"]["project"] == "p" and users["new"]["quotas"]["disk_bytes"] == 1000
    assert (
        revoked["state"] == "revoked"
        and (await site.ask("GET", "/data/jobs?limit=1", made["token"])).status_code == 401
    )
    assert elevated.returncode == 2 and "on the server's machine alone" in elevated.stderr
    assert refused == [400] * 9


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[Served]:
    """A site whose host side has locks of its own: a drain holds for all of a machine."""
    if os.geteuid():
        pytest.skip("only root can give a process a folder of locks of its own")
    python = tmp_path / "python"
    mount = "mount -t tmpfs tmpfs /run/lock && chmod 1777 /run/lock"
    python.write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'{mount} && exec {sys.executable} "$@"\' sh "$@"\n')
    python.chmod(0o755)
    async with served(hosts={"local": {"kind": "local", "python": str(python)}}) as site:
        yield site


async def test_an_admin_drains_a_host_of_the_server_and_adds_none_from_elsewhere(apart: Served, tmp_path: Path):
    site = apart
    laptop = Laptop(tmp_path, site.url, await site.token("chief", "admin"))
    listed = await laptop.told("hosts", "list")
    drained = await laptop.told("hosts", "drain", "local", "--why", "new GPU")
    status = (await laptop.told("status"))["hosts"][0]
    resumed = await laptop.told("hosts", "resume", "local")
    added = await laptop.run("hosts", "add", "box", "ada@box")
    here = await laptop.told("--local", "hosts", "list")
    unknown = await laptop.run("hosts", "drain", "nowhere")
    body = json.dumps({"call": "hosts.drain", "args": ["local", ""]})
    refused = await site.ask("POST", "/admin/team", await site.token("ada"), content=body)

    assert list(listed["hosts"]) == ["local"] and "kind" in listed["hosts"]["local"]
    assert "new GPU" in drained["drained"] and "chief" in drained["drained"]
    assert "new GPU" in json.dumps(status)
    assert resumed["drained"] is None
    assert (
        added.returncode == 2 and f"The settings of {site.url}" in added.stderr and "--local hosts add" in added.stderr
    )
    assert list(here["hosts"]) == ["local"]
    assert unknown.returncode == 2 and "nowhere" in unknown.stderr
    assert refused.status_code == 400 and "admin" in refused.text


async def test_a_user_reads_who_they_are_and_that_their_token_ends_soon(site: Served, tmp_path: Path):
    laptop = Laptop(tmp_path, site.url, await site.token("ida", "read", expires_s=90_000))
    who = await laptop.told("whoami")
    text = (await laptop.run("whoami")).stdout
    status = (await laptop.run("status")).stdout
    soon = "your token ends in "
    other = Laptop(tmp_path / "ana", site.url, await site.token("ana", "run"))
    endless = await other.told("whoami")
    here = await laptop.run("--local", "whoami")

    assert (who["name"], who["scopes"], who["project"]) == ("ida", ["read"], None)
    assert who["warning"].startswith(soon) and "token create ida" in who["warning"]
    assert f"ida at {site.url}: scopes read" in text and soon in text
    assert soon in status.replace("\n", " ")
    assert (endless["expires_at"], endless["warning"]) == (None, "")
    assert here.returncode == 2 and "login URL" in here.stderr
