"""Users of a real OpenID Connect issuer, which runs on loopback, beside users with tokens of the server."""

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gpu_mcp_server.team import openid_tokens
from tests.web.site import PING, Served, served

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("oidc_provider_mock") is None,
    reason="oidc-provider-mock of the group dev is not installed",
)
ISSUE = """
import sys, threading
from datetime import timedelta
from oidc_provider_mock import run_server_in_thread
with run_server_in_thread(port=int(sys.argv[1]), access_token_max_age=timedelta(seconds=int(sys.argv[2]))) as server:
    print(server.server_port, flush=True)
    threading.Event().wait()
"""


class Issuer:
    """An issuer as a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def token(self, sub: str, audience: str = "gpu", **claims: Any) -> str:
        """Log in as a user, by the authorization code flow, and return the ID token."""
        async with httpx2.AsyncClient(base_url=self.url) as http:
            await http.put(f"/users/{sub}", json=claims)
            back = "http://127.0.0.1/back"
            asked = {
                "client_id": audience, "redirect_uri": back, "response_type": "code", "scope": "openid email", "state": "s",
            }  # fmt: skip
            sent = await http.post("/oauth2/authorize", params=asked, data={"sub": sub})
            code = parse_qs(urlsplit(sent.headers["location"]).query)["code"][0]
            given = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
            answer = await http.post("/oauth2/token", data=given, auth=(audience, "any"))
            return answer.json()["id_token"]

    async def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a good token, changed."""
        good = jwt.decode(await self.token("ada", groups=["kernels"]), options={"verify_signature": False})
        return {**good, **changes}

    async def kid(self) -> str:
        async with httpx2.AsyncClient() as http:
            return (await http.get(f"{self.url}/jwks")).json()["keys"][0]["kid"]


@contextmanager
def issuing(port: int = 0, lasts_s: int = 3600) -> Iterator[Issuer]:
    command = [sys.executable, "-W", "ignore", "-c", ISSUE, str(port), str(lasts_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield Issuer(f"http://localhost:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
async def site(issuer: Issuer) -> AsyncIterator[Served]:
    openid = {"issuer": issuer.url, "audience": "gpu", "projects": {"kernels": "fast", "compilers": "cc"}}
    async with served(team={"openid": openid}) as site:
        yield site


async def said(site: Served, token: str) -> str:
    """Return why a token is refused, as the header has it too."""
    answer = await site.ask("POST", "/mcp", token, json=PING)
    assert answer.status_code == 401, answer.text
    why = answer.json()["error_description"]
    assert f'error_description="{why}"' in answer.headers["www-authenticate"]
    return why


async def test_an_issuers_user_works_in_the_project_of_their_group_beside_users_with_tokens(
    site: Served, issuer: Issuer
):
    token = await issuer.token("ada", groups=["others", "compilers"])
    who = (await site.ask("GET", "/whoami", token)).json()
    async with site.client(token) as client:
        made = (await client.call_tool("write_files", {"files": {"a": "a"}})).structured_content or {}
    moved = await issuer.token("ada", groups=["kernels"])
    later = (await site.ask("GET", "/whoami", moved)).json()
    own = (await site.ask("GET", "/whoami", await site.token("bob"))).json()
    bob = await site.ask("GET", f"/data/workspaces/{made['workspace_id']}", await site.token("bob"))
    admin = await site.ask("POST", "/admin/team", token, json={"call": "users.names"})
    metadata = (await site.ask("GET", "/.well-known/oauth-protected-resource/mcp")).json()

    assert (who["name"], who["scopes"], who["project"], who["warning"]) == ("ada", ["run"], "cc", "")
    assert later["project"] == "fast" and who["expires_at"] and own["name"] == "bob"
    assert bob.status_code == 404 and admin.status_code == 400 and metadata["authorization_servers"] == [issuer.url]


async def test_every_other_token_is_refused_with_its_reason(site: Served, issuer: Issuer):
    rsa_key, ec_key = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    kid, good = await issuer.kid(), await issuer.claims()
    with issuing() as other, issuing(lasts_s=-100) as late:
        foreign = await other.token("ada", groups=["kernels"])
        async with served(team={"openid": {"issuer": late.url, "audience": "gpu"}}) as second:
            expired = await said(second, await late.token("ada"))
    unsigned = jwt.encode(good, "", algorithm="none", headers={"kid": kid})
    shared = jwt.encode(good, "x" * 32, algorithm="HS256", headers={"kid": kid})
    odd = jwt.utils.base64url_encode(b'{"alg": "x\\"\\\\\\r\\n y"}').decode() + ".e30.AAAA"
    body, signature = (await issuer.token("ada", groups=["kernels"])).rsplit(".", 1)
    found = {
        "audience": await said(site, await issuer.token("ada", "mail", groups=["kernels"])),
        "no group": await said(site, await issuer.token("ada", groups=["others"])),
        "no groups": await said(site, await issuer.token("ada")),
        "name": await said(site, await issuer.token("a b", groups=["kernels"])),
        "local": await said(site, await issuer.token("local", groups=["kernels"])),
        "issuer's key": await said(site, foreign),
        "own key": await said(site, jwt.encode(good, rsa_key, algorithm="RS256", headers={"kid": "mine"})),
        "their name": await said(site, jwt.encode(good, rsa_key, algorithm="RS256", headers={"kid": kid})),
        "other type": await said(site, jwt.encode(good, ec_key, algorithm="ES256", headers={"kid": kid})),
        "none": await said(site, unsigned),
        "shared": await said(site, shared),
        "changed": await said(site, f"{body}.{signature[:-8]}AAAAAAAA"),
        "no token": await said(site, "a.b.c"),
        "header": await said(site, odd),
    }

    assert expired == "The access token has expired"
    assert found["audience"] == "The access token is for another audience than gpu"
    assert found["no group"] == found["no groups"] and "none of the groups" in found["no group"]
    assert "can be no user's name" in found["name"] and found["local"] == found["name"]
    unknown = f"The access token is signed by a key that {issuer.url} does not have"
    assert {found[name] for name in ("issuer's key", "own key", "their name", "other type", "changed")} == {unknown}
    assert found["no token"] == "The access token is not known here"
    assert "signed by 'none'" in found["none"] and "signed by 'HS256'" in found["shared"]
    assert "signed by 'xrn y'" in found["header"]


async def test_keys_are_asked_for_once_and_seldom_for_names_that_are_not_there(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    read = openid_tokens._read

    async def counted(http: Any, url: str) -> dict[str, Any]:
        asked.append(url)
        return await read(http, url)

    monkeypatch.setattr(openid_tokens, "_read", counted)
    keys = openid_tokens.IssuerKeys(issuer.url)
    for _ in range(5):
        assert await keys.find(await issuer.kid()) is not None
        assert await keys.find("invented") is None
    assert len(asked) == 2, "the document and the keys, once"
    keys._asked_at -= openid_tokens.PAUSE_S + 1  # half a minute later
    assert await keys.find("invented") is None and len(asked) == 4
    with pytest.raises(ValueError, match="not https"):
        openid_tokens._checked_url("http://elsewhere.example/jwks")


async def test_an_issuer_that_is_away_is_no_reason_to_log_in_again():
    with issuing() as gone:
        token, port = await gone.token("ada"), urlsplit(gone.url).port
    async with served(team={"openid": {"issuer": gone.url, "audience": "gpu"}}) as site:
        away = await site.ask("POST", "/mcp", token, json=PING)
        own = await site.ask("GET", "/whoami", await site.token("bob"))
        wrong = openid_tokens.IssuerKeys(f"{gone.url}/")
        with issuing(port or 0) as back:
            with pytest.raises(openid_tokens.HostUnavailable):
                await wrong.find(None)  # it calls itself so without the slash
            assert await openid_tokens.IssuerKeys(back.url).find(None) is not None

    assert away.status_code == 503 and "Retry-After" in away.headers and "does not answer" in away.text
    assert own.status_code == 200
