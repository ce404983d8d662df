"""`python -m gpu_mcp_server`."""

from gpu_mcp_server.cli import main

main()
