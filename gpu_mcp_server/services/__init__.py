"""Services of the server, each written once for any host: each room has the services of one noun.

`lab` opens all of them together. Nothing here knows of MCP or HTTP, which are in mcp_api and web.
"""
