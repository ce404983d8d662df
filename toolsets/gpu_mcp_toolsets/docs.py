"""Toolset `docs`: what the installed toolkits, and our guides, say."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import DocumentsDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.docs import DocKind, DocPage, DocSearch

TOOLSET = Toolset(
    id="docs",
    title="Documentation",
    instructions="Look an API, error or idiom up with search_docs before you guess: it knows the installed versions.",
)


@TOOLSET.tool("Search documentation", effect="reads")
async def search_docs(
    documents: DocumentsDep,
    query: Annotated[str, Field(description="Name, error or question.")],
    library: Annotated[str | None, Field(description="cuda, nccl, hip ...")] = None,
    version: Annotated[str | None, Field(description="Else the installed.")] = None,
    kind: Annotated[DocKind | None, Field(description="What.")] = None,
    limit: Annotated[int, Field(description="Hits.", ge=1, le=10)] = 5,
) -> DocSearch:
    """Find APIs, errors, idioms."""
    return await documents.search(query, library=library, version=version, kind=kind, limit=limit)


@TOOLSET.tool("Read documentation", effect="reads")
async def read_doc(
    documents: DocumentsDep,
    uri: Annotated[str, Field(description="doc://..., or a name.")],
    offset: Annotated[int, Field(description="From next_offset.", ge=0)] = 0,
) -> DocPage:
    """Quote an entry."""
    return await documents.read(uri, offset=offset)
