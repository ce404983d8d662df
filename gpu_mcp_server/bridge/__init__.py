"""A laptop's end of a team's server: MCP over stdio for the client here, over HTTP to the server, files by content.

It imports little, as a client waits for its first answer, and knows nothing of the server's store or hosts.
"""
