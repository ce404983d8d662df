"""A GPU laboratory for coding agents, over MCP.

At the root lie only the entry point, errors, text_safety and package_files, which every room may import. Everything
else has a room; docs/reference/rooms.md shows which room may import which.
"""

__version__ = "0.1.0"
