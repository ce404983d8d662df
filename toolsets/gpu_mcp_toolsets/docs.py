"""Toolset `docs`: what the installed toolkits, and our guides, say."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import DocumentsDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.docs import DocKind, DocPage, DocSearch

TOOLSET = Toolset(
    id="docs",
    title="Documentation",
    instructions="search_docs before you guess an API, error or idiom; read_doc quotes.",
)


@TOOLSET.tool("Search documentation", effect="reads")
async def search_docs(
    documents: DocumentsDep,
    query: Annotated[str, Field(description="API name, error message or question.")],
    library: Annotated[str | None, Field(description="Library alone: cuda, nccl, hip.")] = None,
    version: Annotated[str | None, Field(description="Its version; absent: the installed one.")] = None,
    kind: Annotated[DocKind | None, Field(description="Kind of entry alone.")] = None,
    limit: Annotated[int, Field(description="Most hits to show.", ge=1, le=10)] = 5,
) -> DocSearch:
    """Find APIs, errors, idioms."""
    return await documents.search(query, library=library, version=version, kind=kind, limit=limit)


@TOOLSET.tool("Read documentation", effect="reads")
async def read_doc(
    documents: DocumentsDep,
    uri: Annotated[str, Field(description="doc:// address of a hit, or a name.")],
    offset: Annotated[int, Field(description="Where to go on: next_offset.", ge=0)] = 0,
) -> DocPage:
    """Quote an entry."""
    return await documents.read(uri, offset=offset)
