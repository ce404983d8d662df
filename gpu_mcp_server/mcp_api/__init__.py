"""The server's side of MCP: tools, resources, prompts, tasks, notifications and progress.

It turns messages into calls of services, and results into answers within their limits. The tools themselves are in
gpu_mcp_toolsets, HTTP is in web, and work is done in services.
"""
