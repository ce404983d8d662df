"""The toolsets that come with the server: one module each, listed here in the order of the docs.

A tool takes at most three statements, and calls a service. How a tool is declared is in
gpu_mcp_server/mcp_api/toolset.
"""

from gpu_mcp_toolsets import build, core, docs, evaluate, experience, nccl, pool, profile, program, team

TOOLSETS = (
    core.TOOLSET,
    evaluate.TOOLSET,
    profile.TOOLSET,
    program.TOOLSET,
    nccl.TOOLSET,
    docs.TOOLSET,
    build.TOOLSET,
    experience.TOOLSET,
    pool.TOOLSET,
    team.TOOLSET,
)
