"""A GPU laboratory for coding agents, over MCP."""

__version__ = "0.1.0"
