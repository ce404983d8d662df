"""A scripted agent as models are: it misreads, repeats itself, writes wrong tails, gives up, boasts, or does it right.

    scripted_agent.py NUMBER      the prompt on stdin; with mcp.json beside it our tools are its hands

It knows one thing: a reference `return EXPRESSION` over x, element by element. NUMBER chooses the way it errs.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

WAYS = ("right", "misreads", "wrong tail", "repeats", "gives up", "boasts")
LOOP = """#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < END; i++) y[i] = VALUE;
    return 0;
}
"""


def candidates(way: str, expression: str) -> "list[str]":
    """Return what it writes, one after the other until one is correct."""
    right = LOOP.replace("VALUE", re.sub(r"\bx\b", "x[i]", expression)).replace("END", "n")
    if way == "misreads":
        return [right.replace("+", "-"), right]
    if way == "wrong tail":
        return [right.replace("i < n", "i < n / 4 * 4 - 4"), right]
    if way == "repeats":
        return [right.replace("int64_t i", "int65_t i")] * 3
    if way == "boasts":
        return [right.replace("*", "* 2 *")]
    return [] if way == "gives up" else [right]


class Tools:
    """Our tools, over MCP as mcp.json has them."""

    def __init__(self) -> None:
        entry = json.loads(pathlib.Path("mcp.json").read_text())["mcpServers"]["gpu"]
        self.process = subprocess.Popen(
            [entry["command"], *entry["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        client = {"name": "scripted", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.send(method="notifications/initialized")

    def send(self, **message: Any) -> None:
        """Send one message."""
        print(json.dumps({"jsonrpc": "2.0", **message}), file=self.process.stdin, flush=True)

    def ask(self, method: str, params: "dict[str, Any]") -> Any:
        """Return the answer to a request."""
        self.send(id=1, method=method, params=params)
        for line in self.process.stdout or ():
            found = json.loads(line)
            if found.get("id") == 1:
                return found.get("result", {})
        return {}

    def judge(self, problem_id: str, source: str) -> "tuple[Any, Any]":
        """Return the verdict on a source, and its speed-up."""
        given = {"problem_id": problem_id, "source": source, "language": "c"}
        found = self.ask("tools/call", {"name": "evaluate_kernel", "arguments": given}).get("structuredContent") or {}
        return found.get("verdict"), found.get("speedup")


def main() -> None:
    """Work as the number has it."""
    prompt, way = sys.stdin.read(), WAYS[int(sys.argv[1]) % len(WAYS)]
    expression = re.findall(r"return (.+)", prompt)[0]
    tools = Tools() if pathlib.Path("mcp.json").exists() else None
    claim: dict[str, Any] = {"correct": False, "speedup": None}
    if tools is None:
        for source in candidates(way, expression)[:1]:  # nobody tells it that it is wrong
            pathlib.Path("kernel.c").write_text(source)
            claim = {"correct": True, "speedup": 1.5}
    else:
        problem_id = re.findall(r"problem_id: (p-\S+)", prompt)[0]
        for source in candidates(way, expression):
            verdict, speedup = tools.judge(problem_id, source)
            if verdict == "correct":
                claim = {"correct": True, "speedup": speedup}
                break
        if way == "boasts":  # it was told that this is wrong
            claim = {"correct": True, "speedup": 2.0}
    text = f"I tried it ({way}).\n" + json.dumps({"claim": claim})
    print(json.dumps({"result": text, "total_cost_usd": 0.01, "usage": {"input_tokens": 90, "output_tokens": 10}}))


if __name__ == "__main__":
    main()
