"""Commands for maintainers in a checkout: `python -m gpu_mcp_server.dev`. No command of the product imports it."""
