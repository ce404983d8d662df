"""An agent for any model behind an OpenAI-compatible address: prompt on stdin, tools over a socket.

Its answer on stdout is JSON: `result`, and `usage` where the model's server counts tokens.

    chat.py URL MODEL TURNS [FOLDER]      decoding settings as JSON in DECODING, a key in OPENAI_API_KEY

Source:
    POST /chat/completions with `tools` as llama.cpp, vLLM, Ollama and OpenAI have it; MCP 2025-06-18 over stdio.
"""

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

ANSWER_S = 900
SAID_CHARACTERS = 500
USAGE = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
"""Our names of token counts, and those of the chat protocol."""


class Tools:
    """Our tools, over the socket that the sandbox is shown."""

    def __init__(self, folder: str) -> None:
        """Connect and greet."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.path.join(folder, "tools.sock"))
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._number = 0
        about = {"name": "chat", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: Dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of a request.

        Raises:
            RuntimeError: If it is an error, or nobody answers.
        """
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        for line in self._lines:
            said = json.loads(line)
            if said.get("id") == self._number and "method" not in said:
                if "error" in said:
                    raise RuntimeError(said["error"].get("message", "error"))
                return said["result"]
        raise RuntimeError("the tools hung up")

    def listed(self) -> List[Dict[str, Any]]:
        """Return all tools as chat completions have them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": t["name"],
                    "description": t.get("description", ""),
                    "parameters": t["inputSchema"],
                },
            }
            for t in self.ask("tools/list", {})["tools"]
        ]

    def call(self, name: str, arguments: str) -> str:
        """Call a tool; return what the model is shown: the structure of a success, the words of an error."""
        try:
            result = self.ask("tools/call", {"name": name, "arguments": json.loads(arguments or "{}")})
        except (ValueError, RuntimeError) as error:
            return "error: %s" % error
        if result.get("structuredContent") is not None and not result.get("isError"):
            return json.dumps(result["structuredContent"], ensure_ascii=False)
        return "\n".join(block.get("text", "") for block in result.get("content", []))


def completed(url: str, body: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Ask the model; return its message, and the tokens that its server counted.

    Raises:
        SystemExit: If it does not answer as it should; says what it answered.
    """
    headers = {"Content-Type": "application/json"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
    request = urllib.request.Request(url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            said = json.load(answer)
            return said["choices"][0]["message"], said.get("usage") or {}
    except urllib.error.HTTPError as error:
        said = error.read(SAID_CHARACTERS).decode("utf-8", "replace")
        raise SystemExit("the model answered %d: %s" % (error.code, said)) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SystemExit("the model cannot be asked: %s: %s" % (type(error).__name__, error)) from None


def main(url: str, model: str, turns: int, folder: Optional[str]) -> None:
    """Converse until the model calls no tool, or its turns are used up."""
    tools = Tools(folder) if folder else None
    offered = tools.listed() if tools else []
    settings: Dict[str, Any] = json.loads(os.environ.get("DECODING") or "{}")
    messages: List[Dict[str, Any]] = [{"role": "user", "content": sys.stdin.read()}]
    counted: Dict[str, int] = {}
    for turn in range(turns):
        body: Dict[str, Any] = {"model": model, "messages": messages, **settings}
        if offered and turn < turns - 1:
            body["tools"] = offered
        message, usage = completed(url, body)
        for name, theirs in USAGE.items():
            if isinstance(usage.get(theirs), int):
                counted[name] = counted.get(name, 0) + usage[theirs]
        messages.append({k: v for k, v in message.items() if k in ("role", "content", "tool_calls") and v is not None})
        calls: List[Any] = message.get("tool_calls") or []
        if not calls or tools is None:
            break
        for call in calls:
            said = tools.call(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    print(json.dumps({"result": messages[-1].get("content") or "", "usage": counted}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
