"""The first hour of a team's lead: a server over HTTP, tokens and quotas, two engineers, dashboard, metrics, backup.

    python benchmarks/first_hour/team_lead.py    (as root, which makes three accounts and deletes them at the end)

The server listens on loopback, as an ordinary user. Each step runs in a terminal of 80 columns, with a HOME of its own;
a row says what came and whether it left a riddle.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.first_hour.accounts import accounts, give  # noqa: E402
from benchmarks.first_hour.terminal import HEAD, Person, install_command  # noqa: E402

LEAD, ADA, BOB = "fh-lead", "fh-ada", "fh-bob"
TOKEN = re.compile(r"gpumcp_\S+")
ASK = """import asyncio, sys
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main(url, token, times):
    http = httpx2.AsyncClient(headers={"Authorization": "Bearer " + token}, timeout=60)
    async with http, Client(streamable_http_client(url + "/mcp", http_client=http)) as client:
        for _ in range(int(times)):
            told = await client.call_tool("run_command", {"command": ["echo", "made it"], "host": "local"})
            print("\\n".join(block.text for block in told.content).splitlines()[-1])

asyncio.run(main(*sys.argv[1:]))
"""
"""An agent's program: it calls a tool of the server as often as it is told."""


@contextmanager
def served(lead: Person) -> Generator[str]:
    """Start the lead's server as the documentation says; yield its address."""
    process = subprocess.Popen(
        [*lead.become(), "gpu-mcp-server", "serve", "--http", "127.0.0.1:0"],
        env={"HOME": str(lead.home), "PATH": lead.path, "GPU_MCP_MIN_LEVEL": "namespaces"}, cwd=lead.home,
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    try:
        for line in process.stderr:
            if found := re.search(r"running on (http://[\d.:]+)", line):
                yield found[1]
                return
        raise SystemExit("The server ended before it listened.")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def token_of(lead: Person, words: str) -> str:
    """Make a token and return it."""
    found = TOKEN.search(lead.do(f"gpu-mcp-server token create {words}", says="gpumcp_").text)
    return found[0] if found else ""


def first_hour(lead: Person, ada: Person, bob: Person) -> None:
    """Play the hour."""
    admin, hers, his = (token_of(lead, words) for words in ("lead --scope admin", "ada --project kernels", "bob"))
    lead.do("gpu-mcp-server user set bob --requests-per-minute 3 --concurrent-jobs 1", says="requests_per_minute 3")
    lead.do("gpu-mcp-server user list", says="ada.*bob|bob.*ada")
    lead.do("gpu-mcp-server token list", says="never|expires|until|202")
    with served(lead) as url:
        ada.do(f"gpu-mcp-server login {url} --no-clients", code=2, says="does not take the token", stdin="gpumcp_no\n")
        ada.do(f"gpu-mcp-server login {url} --no-clients", says="(?i)kept|token", stdin=f"{hers}\n")
        ada.do(f"gpu-mcp-server client-config --url {url}/mcp", says="mcp add --transport http|transport")
        ada.do(f"gpu-mcp-server store push {url}", says="0 problems")
        agent = f"python ask.py {url}"
        ada.do(f"{agent} {hers} 1", says="made it")
        bob.do(
            f"{agent} {his} 20 2>&1 | grep -o 'requests_per_minute.*' | fold -s -w 80", says="(?i)until|again|minute"
        )
        cookie = f"curl -s -i -c jar -H 'Origin: {url}' --data-urlencode"
        ada.do(f"{cookie} token=gpumcp_wrong {url}/login -o answer; head -n 1 answer | tr -d '\\r'", says="401")
        ada.do(f"{cookie} token={hers} {url}/login -o answer; head -n 1 answer | tr -d '\\r'", says="303")
        ada.do(f"curl -s -b jar {url}/jobs | grep -c echo", says="[1-9]")
        lead.do(f"curl -s -H 'Authorization: Bearer {admin}' {url}/metrics | grep -c '^gpu_mcp'", says="[1-9]")
        lead.do(f"curl -s -o /dev/null -w '%{{http_code}}' {url}/metrics", says="401")
        lead.do("gpu-mcp-server user log ada", says="run_command")
        lead.do("gpu-mcp-server store backup team.tar.gz", says="team.tar.gz")
    lead.do("gpu-mcp-server store restore team.tar.gz", code=2, says="--replace")
    lead.do("gpu-mcp-server store restore team.tar.gz --replace", says="(?i)database")
    lead.do("gpu-mcp-server user list", says="ada")


def main() -> int:
    """Play the hour, and print a table."""
    with accounts(LEAD, ADA, BOB) as homes:
        people: list[Person] = []
        for home, name in zip(homes, (LEAD, ADA, BOB), strict=True):
            path = install_command(home, ROOT, sys.executable)
            (home / "ask.py").write_text(ASK)
            give(home, name)
            people.append(Person(home, name, path=path))
        print(HEAD, flush=True)
        first_hour(people[0], people[1], people[2])
        faults = sum(person.faults() for person in people)
        print(f"\nsteps: {sum(len(person.steps) for person in people)}, with a riddle: {faults}")
        return int(bool(faults))


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("curl"):
        raise SystemExit("This needs root, to make accounts, and curl.")
    sys.exit(main())
