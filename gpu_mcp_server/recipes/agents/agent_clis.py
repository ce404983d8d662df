"""Agents that are known by name: how each is called without a person, with our tools and without its own shell."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.run_plan import AgentCommand, ClientName
from gpu_mcp_server.package_files import PACKAGE

GATE, CHAT = ".gate/sandbox_proxy.py", ".gate/chat.py"
SERVER_STARTS_S = 60
SERVER_ANSWERS_S = 3600
INSIDE = PACKAGE / "recipes" / "inside"
_QUIET = (
    "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "DISABLE_BUG_COMMAND",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
)  # fmt: skip


@dataclass(frozen=True)
class Around:
    """Surroundings of an agent in its sandbox: its Python, the sockets' folder, tools, the model's address."""

    python: str
    folder: str
    """Where the sockets are; empty if there are none."""
    tools: bool
    address: str
    """The model's, as seen inside; empty if none was declared."""

    @property
    def gate(self) -> list[str]:
        """The command that is our tools, as MCP over stdio."""
        return [self.python, f"/job/{GATE}", "tools", self.folder]


@dataclass(frozen=True)
class Call:
    """A command line, and what belongs to it; placeholders are still in it."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])


def call_of(agent: AgentCommand, around: Around) -> Call:
    """Return how an agent is called: by its name, or as its template has it.

    Raises:
        BadRequest: If it has a name and lacks what an agent of that name needs, or has no use for a setting.
    """
    if unused := unused_decoding(agent):
        raise BadRequest(
            f"The agent has no use for decoding.{unused[0]}.",
            hint=f"Put {{{unused[0]}}} into command, stdin or environment, or leave the setting out.",
        )
    if agent.client is None:
        return Call(agent.command, files=_mcp_json(around))
    return _CLIENTS[agent.client](agent, around)


def unused_decoding(agent: AgentCommand) -> list[str]:
    """Return the settings of decoding that reach no model: no placeholder, and nothing that the client takes."""
    if agent.client == "chat":
        return []
    texts = [*agent.command, agent.stdin, *agent.environment.values()]
    taken = ("max_tokens",) if agent.client == "claude" else ()
    return [name for name in agent.decoding if name not in taken and not any(f"{{{name}}}" in text for text in texts)]


def _mcp_json(around: Around) -> dict[str, str]:
    """Return the file that Claude Code and many others read of their servers."""
    if not around.tools:
        return {}
    program, *arguments = around.gate
    return {"mcp.json": json.dumps({"mcpServers": {"gpu": {"command": program, "args": arguments}}}, indent=1)}


def _claude(agent: AgentCommand, around: Around) -> Call:
    tools = ["--mcp-config", "/job/mcp.json", "--allowedTools", "mcp__gpu"] if around.tools else []
    base = {"ANTHROPIC_BASE_URL": "{address}"} if around.address else {}
    base |= {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{max_tokens}"} if "max_tokens" in agent.decoding else {}
    return Call(
        [
            *(agent.command or ["claude"]), "-p", "--output-format", "json", "--max-turns", "{turns}", "--tools", "",
            "--strict-mcp-config", *tools, *(["--model", "{model}"] if agent.model else []),
        ],
        {**dict.fromkeys(_QUIET, "1"), "ENABLE_TOOL_SEARCH": "false", **base},
        _mcp_json(around),
    )  # fmt: skip


def _codex(agent: AgentCommand, around: Around) -> Call:
    program, *arguments = around.gate
    lines = [
        'approval_policy = "never"',
        'sandbox_mode = "danger-full-access"',  # it is in one of ours, in which its own cannot be made
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[features]",
        "shell_tool = false",
        "unified_exec = false",
    ]
    if around.address:
        lines[:0] = [f"model_provider = {json.dumps('declared')}"]
        lines += ["[model_providers.declared]", 'name = "declared"', f"base_url = {json.dumps(around.address)}"]
        lines += ['env_key = "OPENAI_API_KEY"', 'wire_api = "responses"']
    if around.tools:
        lines += ["[mcp_servers.gpu]", f"command = {json.dumps(program)}", f"args = {json.dumps(arguments)}"]
        lines += ["required = true", 'default_tools_approval_mode = "approve"']
        lines += [f"startup_timeout_sec = {SERVER_STARTS_S}", f"tool_timeout_sec = {SERVER_ANSWERS_S}"]
    model = ["--model", "{model}"] if agent.model else []
    command = [*(agent.command or ["codex"]), "exec", "--skip-git-repo-check", *model, "-"]
    return Call(command, files={".codex/config.toml": "\n".join(lines) + "\n"})


def _gemini(agent: AgentCommand, around: Around) -> Call:
    program, *arguments = around.gate
    server = {"command": program, "args": arguments, "trust": True, "timeout": SERVER_ANSWERS_S * 1000}
    settings = {
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "model": {"maxSessionTurns": agent.turns},
        "tools": {"core": ["mcp_gpu_*"]},
        **({"mcpServers": {"gpu": server}} if around.tools else {}),
    }
    base = {"GOOGLE_GEMINI_BASE_URL": "{address}"} if around.address else {}
    model = ["--model", "{model}"] if agent.model else []
    return Call(
        [*(agent.command or ["gemini"]), "--output-format", "json", "--skip-trust", *model],
        base,
        {".gemini/settings.json": json.dumps(settings, indent=1)},
    )


def _chat(agent: AgentCommand, around: Around) -> Call:
    if not around.address or not agent.model:
        raise BadRequest(
            "The client chat needs agent.address and agent.model.", hint="docs/how-to/headless-runs.md has an example."
        )
    command = [around.python, f"/job/{CHAT}", "{address}", "{model}", "{turns}"]
    return Call(
        command + ([around.folder] if around.tools else []),
        {"DECODING": json.dumps(agent.decoding)},
        {CHAT: (INSIDE / "chat.py").read_text(encoding="utf-8")},
    )


_CLIENTS: Mapping[ClientName, Callable[[AgentCommand, Around], Call]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "chat": _chat,
}
