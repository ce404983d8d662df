"""Input that is no message of JSON-RPC is answered with an error, by stdio and HTTP, and the server goes on."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer
from mcp.types import INVALID_REQUEST, PARSE_ERROR

from gpu_mcp_server.mcp_api.malformed_messages import refusal
from tests.laboratory import Folder
from tests.web.site import Served, served

PACKAGE = Path(__file__).parents[2] / "gpu_mcp_server"
PRIVATE = {"_lowlevel_server"}
"""Names of the SDK that it promises to nobody, and that the server uses all the same."""
HEAD = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"write_files","arguments":'
NOT_MESSAGES: dict[str, tuple[bytes, int, Any]] = {
    "half a pair in content": (HEAD + rb'{"files":{"a.c":"x \ud800 y"}}}}', PARSE_ERROR, 7),
    "half a pair in a path": (HEAD + rb'{"files":{"a\udfff.c":"x"}}}}', PARSE_ERROR, 7),
    "half a pair in a tool's name": (rb'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\udfff"}}', PARSE_ERROR, 7),
    "half a pair as the id": (rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}', PARSE_ERROR, None),
    "words": (b"hello there", PARSE_ERROR, None),
    "cut off": (b'{"jsonrpc":"2.0","id":7,"method":', PARSE_ERROR, 7),
    "no UTF-8": (HEAD + b'{"files":{"a.c":"x \xff y"}}}}', PARSE_ERROR, 7),
    "a raw NUL": (HEAD + b'{"files":{"a.c":"x \x00 y"}}}}', PARSE_ERROR, 7),
    "deep nesting": (HEAD + b"[" * 100_000 + b"]" * 100_000 + b"}}", PARSE_ERROR, 7),
    "a number of 5000 digits": (HEAD + b"9" * 5000 + b"}}", PARSE_ERROR, 7),
    "10 MB of junk": (b"x" * 10_000_000, PARSE_ERROR, None),
    "a list": (b"[1, 2]", INVALID_REQUEST, None),
    "null": (b"null", INVALID_REQUEST, None),
    "no method": (b'{"jsonrpc":"2.0","id":7}', INVALID_REQUEST, 7),
    "no jsonrpc": (b'{"id":"a","method":"ping"}', INVALID_REQUEST, "a"),
    "params that are text": (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":"x"}', INVALID_REQUEST, 7),
    "id null": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, None),
    "id true": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST, None),
    "id 1.5": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST, None),
    "an answer of no shape": (b'{"jsonrpc":"2.0","id":7,"error":5}', INVALID_REQUEST, None),
}  # fmt: skip
"""What is sent, the code and the id of the answer."""
MESSAGES: dict[str, tuple[bytes, str]] = {
    "a whole pair": (HEAD + rb'{"files":{"a.c":"\ud83d\ude00"}}}}', "workspace"),
    "an escaped NUL": (HEAD + rb'{"files":{"a.c":"\u0000"}}}}', "workspace"),
    "a NUL in a path": (HEAD + rb'{"files":{"a\u0000.c":"x"}}}}', "control characters"),
    "NaN": (HEAD.replace(b"write_files", b"run_command") + b'{"command":["true"],"timeout_s":NaN}}}', "timeout_s"),
    "1e400": (HEAD.replace(b"write_files", b"run_command") + b'{"command":["true"],"timeout_s":1e400}}}', "timeout_s"),
    "10 MB": (HEAD + b'{"files":{"a.c":"' + b"x" * 10_000_000 + b'"}}}}', "1048576"),
    "the same key twice": (b'{"jsonrpc":"2.0","id":1,"id":7,"method":"x","method":"ping"}', "{}"),
}
PING = b'{"jsonrpc":"2.0","id":99,"method":"ping"}'


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_message_has_its_answer(name: str):
    data, code, number = NOT_MESSAGES[name]
    answer = refusal(data)
    assert answer is not None and (answer.error.code, answer.id) == (code, number)
    assert json.loads(answer.model_dump_json())["id"] == number
    assert refusal(PING) is None and len(answer.error.message) < 300


def test_only_an_id_of_the_message_itself_is_taken():
    for hidden in (b'{"params":{"id":7,"x":"\\ud800"}}', b'{"a":"\\",\\"id\\":7","b":"\\ud800"}', b'["id":7,'):
        answer = refusal(hidden)
        assert answer is not None and answer.id is None


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_junk_is_refused_and_never_raises(data: bytes):
    answer = refusal(data)
    assert answer is not None and answer.error.code in (PARSE_ERROR, INVALID_REQUEST)


def test_a_message_may_hold_any_text():
    @given(st.text())
    def accepted(text: str) -> None:
        for ascii_only in (True, False):
            body = {"jsonrpc": "2.0", "id": text, "method": text, "params": {"a": text}}
            assert refusal(json.dumps(body, ensure_ascii=ascii_only).encode()) is None

    accepted()


class Client:
    """A client over stdio that writes bytes as they are."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._stdin, self._stdout = stdin, stdout
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        assert self.ask(json.dumps(asked).encode())["id"] == 1
        self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def send(self, line: bytes) -> None:
        self._stdin.write(line + b"\n")
        self._stdin.flush()

    def ask(self, line: bytes) -> dict[str, Any]:
        """Send a line, and return the next message that is no notification."""
        self.send(line)
        while "method" in (answer := json.loads(self._stdout.readline())):
            pass
        return answer


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Folder() as folder:
        env = {**os.environ, "HOME": str(folder), "GPU_MCP_DATA_DIR": str(folder / "data")}
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-m", "gpu_mcp_server"], stdin=pipe, stdout=pipe, env=env) as process:
            assert process.stdin is not None and process.stdout is not None
            yield Client(process.stdin, process.stdout)
            process.stdin.close()
            assert process.wait(30) == 0


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_stdio_answers_what_is_no_message_and_goes_on(client: Client, name: str):
    data, code, number = NOT_MESSAGES[name]
    answer = client.ask(data)
    assert (answer["error"]["code"], answer["id"]) == (code, number)
    assert client.ask(b"\n" + PING) == {"jsonrpc": "2.0", "id": 99, "result": {}}


@pytest.mark.parametrize("name", MESSAGES)
def test_stdio_takes_what_is_odd_and_a_message(client: Client, name: str):
    data, words = MESSAGES[name]
    answer = client.ask(data)
    assert answer["id"] == 7 and words in json.dumps(answer["result"])


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served(tokens=False, team={"max_body_mib": 16}) as site:
        yield site


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
@pytest.mark.parametrize("name", NOT_MESSAGES)
async def test_http_answers_what_is_no_message_and_goes_on(site: Served, name: str, version: str):
    data, code, number = NOT_MESSAGES[name]
    headers = {"Content-Type": "application/json", "MCP-Protocol-Version": version}
    answer = await site.ask("POST", "/mcp", headers=headers, content=data)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["id"]) == (code, number)
    assert (await site.ask("GET", "/healthz")).status_code == 200


def test_private_names_of_the_sdk_are_these_and_do_what_they_did():
    """Pyright refuses any other: it takes a private name only beside the mark that is looked for here."""
    marked = [
        line
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "reportPrivateUsage" in line
    ]
    inner = MCPServer("any")._lowlevel_server

    assert {name for line in marked for name in re.findall(r"\w\.(_[a-z]\w+)", line)} == PRIVATE
    assert callable(inner.run) and callable(inner.create_initialization_options)
