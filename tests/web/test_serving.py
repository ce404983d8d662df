"""The server over HTTP: both eras, who is let in, whose things are whose."""

import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.models.user import User
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.team.token_verifier import TokenRefusal
from tests.laboratory import PROBLEM, called, refused
from tests.web.site import PING, Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_user_sees_their_own_in_both_eras_and_no_local_files(site: Served, mode: str):
    ada, bob = await site.token("ada"), await site.token("bob")
    async with site.client(ada, mode) as one, site.client(bob, mode) as other:
        mine = await called(one, "write_files", files={"k.c": "int a;\n"})
        unknown = await refused(other, "read_file", workspace_id="w-000000000000", path="k.c")
        guessed = await refused(other, "read_file", workspace_id=mine["workspace_id"], path="k.c")
        read = await called(one, "read_file", workspace_id=mine["workspace_id"], path="k.c")
        local = await refused(one, "compile_kernel", path="/etc/hostname")

    assert guessed == unknown.replace("w-000000000000", mine["workspace_id"])
    assert "int a;" in str(read)
    assert "does not read local files" in local


def a_problem() -> Problem:
    tensors = {name: [TensorSpec(**each) for each in PROBLEM[name]] for name in ("inputs", "outputs")}
    return Problems.make_problem(
        PROBLEM["name"], "", "numpy", "reference", tensors["inputs"], tensors["outputs"], PROBLEM["shapes"],
        PROBLEM["rtol"], PROBLEM["atol"], PROBLEM["reference"],
    )  # fmt: skip


async def test_without_a_token_or_with_a_wrong_one_the_answer_says_how_to_come_in(site: Served):
    good = await site.token("ada")
    expired = await site.token("ada", expires_s=0.000001)
    revoked = await site.token("ada")
    await site.team.tokens.revoke(revoked.split("_")[1])
    none = await site.ask("POST", "/mcp", json=PING)
    wrong = [
        await site.ask("POST", "/mcp", token, json=PING)
        for token in ("x", good[:-1] + ("A" if good[-1] != "A" else "B"), "gpumcp_000000000000_" + "A" * 43)
    ]
    late = [await site.ask("POST", "/mcp", token, json=PING) for token in (expired, revoked)]

    assert none.status_code == 401 and "error=" not in none.headers["www-authenticate"]
    told = re.search(r'resource_metadata="(http://[^"]+)"', none.headers["www-authenticate"])
    assert told and told[1].startswith(site.url), none.headers
    assert (await site.ask("GET", told[1].removeprefix(site.url))).json()["resource"].endswith("/mcp")
    assert {w.status_code for w in wrong} == {401}
    assert len({(w.headers["www-authenticate"], w.text) for w in wrong}) == 1, "a wrong secret tells that the id exists"
    assert 'error="invalid_token"' in wrong[0].headers["www-authenticate"]
    assert [a.json()["error_description"] for a in late] == [
        "The access token has expired",
        "The access token was revoked",
    ]


async def test_a_token_that_may_only_read_is_offered_and_allowed_no_more(site: Served):
    token = await site.token("eve", "read")
    async with site.client(token) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        words = await refused(client, "write_files", files={"a": "b"})

    assert "read_file" in tools and not {"write_files", "run_command", "cancel_job"} & tools
    assert "write_files needs a token with the scope 'run'; yours has read" in words
    assert "gpu-mcp-server token create eve --scope run" in words and "You may call: gpu_status, read_file" in words


async def test_a_user_with_few_toolsets_gets_those_alone(site: Served):
    async with site.client(await site.token("joe", toolsets=["docs"])) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        words = await refused(client, "gpu_status")

    assert tools == {"search_docs", "read_doc"}
    assert "'core'" in words


async def test_a_session_of_the_older_era_is_its_users_alone(site: Served):
    ada, bob = await site.token("ada"), await site.token("bob")
    session = await site.session(ada)

    assert (await site.ask("POST", "/mcp", bob, json=PING, headers=session)).status_code == 404
    assert (await site.ask("DELETE", "/mcp", bob, headers=session)).status_code == 404
    assert (await site.ask("DELETE", "/mcp", ada, headers=session)).status_code == 200


async def test_health_and_metadata_need_no_token_and_other_names_are_turned_away(site: Served):
    health, ready = await site.ask("GET", "/healthz"), await site.ask("GET", "/readyz")
    metadata = (await site.ask("GET", "/.well-known/oauth-protected-resource/mcp")).json()
    host = await site.ask("GET", "/healthz", headers={"Host": "evil.example"})
    origin = await site.ask("GET", "/healthz", headers={"Origin": "http://evil.example"})

    assert (health.json()["status"], ready.json()["status"]) == ("ok", "ready")
    assert metadata["resource"] == f"{site.url}/mcp" and metadata["scopes_supported"] == ["read", "run", "admin"]
    assert (host.status_code, origin.status_code) == (421, 403)


@pytest.mark.parametrize("kind", ["attempt", "job", "artifact", "problem"])
async def test_other_handles_are_as_unknown_as_those_that_never_were(site: Served, kind: str):
    calls: dict[str, tuple[str, str, dict[str, Any]]] = {
        "attempt": ("list_attempts", "attempt_id", {"view": "ancestors"}),
        "job": ("job_status", "job_id", {}),
        "artifact": ("read_artifact", "artifact_id", {}),
        "problem": ("list_problems", "problem_id", {}),
    }
    tool, argument, more = calls[kind]
    lab = await site.lab()
    await lab.store.problems.add(a_problem())
    handles = {
        "attempt": await lab.store.experience.start("run"),
        "job": (await lab.commands._table.add("j-1-00000000", "local", "run")).job_id,
        "artifact": await lab.store.artifacts.put(b"secret", name="secret"),
        "problem": a_problem().problem_id,
    }
    async with site.client(await site.token("bob")) as client:
        theirs = await refused(client, tool, **{argument: handles[kind]}, **more)
        nobodys = await refused(client, tool, **{argument: handles[kind][:-1] + "z"}, **more)

    assert theirs == nobodys.replace(handles[kind][:-1] + "z", handles[kind])


class Directory:
    """An identity provider's tokens."""

    async def verify(self, secret: str) -> User | TokenRefusal:
        return User(name="kim", scopes=("read",)) if secret == "from elsewhere" else TokenRefusal("unknown")


async def test_another_verifier_says_who_users_are_with_nothing_else_changed():
    async with served(verifier=Directory(), team={"authorization_servers": ["https://id.example.org"]}) as site:
        async with site.client("from elsewhere") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
        wrong = await site.ask("POST", "/mcp", "something", json=PING)
        metadata = (await site.ask("GET", "/.well-known/oauth-protected-resource/mcp")).json()

    assert "read_file" in tools and "run_command" not in tools
    assert wrong.status_code == 401
    assert metadata["authorization_servers"] == ["https://id.example.org"]


async def test_tls_by_files(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*made, *about], check=True, capture_output=True)
    async with served(team={"tls_cert": str(cert), "tls_key": str(key)}) as site:
        trusting = ssl.create_default_context(cafile=str(cert))
        async with httpx2.AsyncClient(verify=trusting) as http:
            health = await http.get(site.url.replace("http:", "https:") + "/healthz")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        async with served(team={"tls_cert": str(key), "tls_key": str(cert)}):
            pass
    with pytest.raises(ConfigError, match="both"):
        async with served(team={"tls_cert": str(cert)}):
            pass

    assert health.json()["status"] == "ok"
