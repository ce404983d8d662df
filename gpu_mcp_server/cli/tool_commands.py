"""Commands named in hints on the command line, in place of the tools named over MCP."""

import re

TWINS = {
    "gpu_status": "status",
    "write_files": "push",
    "list_files": "pull",
    "read_file": "pull",
    "run_command": "run",
    "job_status": "logs",
    "cancel_job": "cancel",
    "list_attempts": "history",
    "audit_attempt": "audit",
    "search_docs": "docs search",
    "verify_nccl": "nccl verify",
    "set_implementation": "implementations",
}
"""Tools that have a command of their own, and its words."""
PHRASES = {
    "job_status with wait_s": "logs --follow",
    "list_attempts with view recent": "history --view recent",
    "write_files without workspace_id": "push",
    "write_files with local_path": "push",
}
"""A tool with an argument, where the command has another word for it."""
CALLED = (
    "compile_kernel", "read_artifact", "register_problem", "import_problem", "list_problems", "evaluate_kernel",
    "evaluate_kernels", "check_memory", "profile_kernel", "query_profile", "find_hotspots", "read_doc", "inspect_code",
    "build_project", "run_tests", "port_source", "find_attempts", "add_note", "reserve_gpu", "release_gpu",
    "submit_batch", "analyze_nccl", "transform_nccl", "capture_problem", "apply_attempt", "verify_in_place",
    "make_dispatcher",
)  # fmt: skip
"""Tools that `call` alone calls. Those named by an ordinary word, `lessons` and `share`, are in no hint."""
LIST = "You may call: "
"""How the server begins a list of its tools."""
_COMMANDS = PHRASES | TWINS | {tool: f"call {tool}" for tool in CALLED}
_NAMED = re.compile(rf"(?<![\w'\"`./-])(?<!call )({'|'.join(sorted(_COMMANDS, key=len, reverse=True))})(?![\w'\"`(])")


def name_commands(text: str, typed: str = "") -> str:
    """Return an error or hint with each tool in it named by its command; quoted names stay, they are what was given.

    Args:
        text: The error or hint.
        typed: The tool that the user named; it stays as well, as do the names in a list of what `call` takes.
    """
    said, begin, names = text.partition(LIST)
    said = _NAMED.sub(lambda at: at[1] if at[1] == typed else f"`gpu-mcp-server {_COMMANDS[at[1]]}`", said)
    return said + begin + names
