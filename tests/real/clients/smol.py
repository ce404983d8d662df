"""An agent of smolagents with our tools: prompt on stdin, answer on stdout. Runs inside a recipe's sandbox."""

import json
import os
import sys
from pathlib import Path

from mcp import StdioServerParameters
from smolagents import OpenAIServerModel, ToolCallingAgent, ToolCollection

entry = json.loads(Path("mcp.json").read_text())["mcpServers"]["gpu"]
model = OpenAIServerModel("scripted", api_base=sys.argv[1], api_key="dummy-key")
server = StdioServerParameters(command=entry["command"], args=entry["args"], env=dict(os.environ))
with ToolCollection.from_mcp(server, trust_remote_code=True) as collection:
    for tool in collection.tools:
        for argument in tool.inputs.values():
            argument["nullable"] = True  # smolagents 1.26 takes every argument of an MCP tool for required
    agent = ToolCallingAgent(tools=[*collection.tools], model=model, max_steps=int(sys.argv[2]), verbosity_level=0)
    print(agent.run(sys.stdin.read()))
