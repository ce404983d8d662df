"""The server over HTTP: transport, authentication, limits, metrics, health and webhooks.

Routes that are neither MCP nor pages are here too. Pages are in web/dashboard, and the MCP server itself is in
mcp_api.
"""
