"""The tools of the toolset `nccl`, called as an agent calls them."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from mcp import Client
from mcp.types import TextContent

from gpu_mcp_server.knowledge.index.index_schema import write_index
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage
from gpu_mcp_server.mcp_api.server import build_server
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.runtime.result_limits import RESULT_LIMIT
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.nccl.transform import Collectives
from gpu_mcp_server.settings.server_settings import Settings
from tests.knowledge.conftest import BOXES, edition
from tests.stand_ins import Laboratory, Opener

PROGRAMS = Path(__file__).parents[1] / "nccl" / "programs"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    def prepare(lab: Laboratory) -> None:
        settings = Settings(data_dir=tmp_path / "documents", index_documentation=False)
        lab.nccl = SimpleNamespace(collectives=Collectives(lab.store.workspaces, Documents(settings)))  # type: ignore[attr-defined]

    opener = Opener(tmp_path)
    opener.prepare = prepare
    async with Client(build_server(opener, discover(), only=["core", "nccl"])) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    (text,) = result.content
    assert isinstance(text, TextContent) and len(text.text) <= RESULT_LIMIT
    return {**result.structured_content, "text": text.text}


async def failure(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (text,) = result.content
    assert isinstance(text, TextContent)
    return text.text


async def lines(client: Client, workspace_id: str, path: str) -> str:
    read = await call(client, "read_file", workspace_id=workspace_id, path=path, max_lines=2000)
    return str(read["text"])


async def test_a_local_program_is_analyzed_with_graph_and_pictures(client: Client):
    found = await call(client, "analyze_nccl", path=str(PROGRAMS / "sendrecv.cu"))
    workspace = str(found["workspace_id"])

    assert [s["call"] for s in found["sites"]] == ["ncclSend", "ncclRecv"]
    assert "x1 all-to-all (c1, c2)" in found["text"]
    assert "flowchart LR" in await lines(client, workspace, "graph.mmd")
    assert "scale:55" in await lines(client, workspace, "graph.mmd")


async def test_what_is_advised_cites_the_installed_nccls_entries(client: Client, tmp_path: Path):
    header = "/** Registers a window. */\nint ncclCommWindowRegister(void *buffer);\n"
    source = replace(BOXES, id="nccl", library="nccl", family="nccl")
    storage = Storage(tmp_path / "documents")
    with storage.building(), storage.new_index() as folder:
        write_index(folder / DATABASE, [edition(tmp_path / "header", source, {"boxes.h": header})])

    found = await call(client, "analyze_nccl", path=str(PROGRAMS / "sendrecv.cu"))
    made = await call(client, "transform_nccl", path=str(PROGRAMS / "sendrecv.cu"))

    assert found["see"] == made["see"] == ["doc://nccl/unknown/function/ncclCommWindowRegister"]
    assert "see doc://nccl/" in found["text"] and "see doc://nccl/" in made["text"]


async def test_the_pictures_are_well_formed_whatever_names_there_are():
    from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
    from gpu_mcp_server.nccl.analysis.graph_export import export_graph
    from gpu_mcp_server.nccl.analysis.graph_rendering import mermaid, svg

    text = "".join(f'ncclSend(f<{n}>("<&>") + {n}, 1, t, 0, c, s);' for n in range(50))
    graph = export_graph(Analysis({"m.cu": f"void run() {{ {text} }}"}, "m.cu"))
    root = ElementTree.fromstring(svg(graph))

    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 121  # each buffer has an unknown writer
    assert "10 more sites" in svg(graph) and "10 more sites" in mermaid(graph)
    assert '"<' not in mermaid(graph)


async def test_a_transformed_program_lies_in_a_workspace_and_the_original_is_as_it_was(client: Client, tmp_path: Path):
    original = tmp_path / "alltoall.cu"
    original.write_bytes((PROGRAMS / "alltoall.cu").read_bytes())
    made = await call(client, "transform_nccl", path=str(original))
    workspace = str(made["workspace_id"])
    again = await call(client, "transform_nccl", workspace_id=workspace, path=made["main"])

    assert original.read_bytes() == (PROGRAMS / "alltoall.cu").read_bytes()
    assert list(tmp_path.glob("*.cu*")) == [original]
    assert made["files"] == ["alltoall.device.cu", "ncclx.cuh", "ncclx_kernels.cuh"]
    assert "ncclx::AlltoAll(" in await lines(client, workspace, "alltoall.device.cu")
    assert "-    NCCLCHECK(ncclAlltoAll(" in await lines(client, workspace, "transform.diff")
    assert again["status"] == "unchanged"


async def test_stages_api_and_version_are_taken_from_the_call(client: Client):
    path = str(PROGRAMS / "alltoall.cu")
    a = await call(client, "transform_nccl", path=path, stages=["infrastructure"])
    gin = await call(client, "transform_nccl", path=path, api="gin", nccl_version="2.28.9")
    old = await call(client, "transform_nccl", path=path, nccl_version="2.27.7")

    rccl = await call(client, "transform_nccl", path=path, nccl_version="rccl-2.27.7")

    assert list(a["done"]) == ["infrastructure"]
    assert rccl["status"] == "needs the agent" and "RCCL 2.27.7" in rccl["headline"]
    assert gin["api"] == "gin" and any("have not run" in u for u in gin["unverified"])
    assert "is no version" in await failure(client, "transform_nccl", path=path, nccl_version="new")
    assert old["status"] == "needs the agent" and "files" not in json.dumps(old["done"])


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({"notes.txt": "no"}, {}, "no C, C++ or CUDA source"),
        ({"a.cu": "x", "b.cu": "y"}, {}, "could be the program's main file"),
        ({"a.cu": "x"}, {"path": "b.cu"}, "'b.cu' is not among the sources"),
    ],
)
async def test_files_that_are_no_program_are_refused_with_what_to_give(
    client: Client, files: dict[str, str], arguments: dict[str, str], said: str
):
    written = await call(client, "write_files", files=files)

    assert said in await failure(client, "analyze_nccl", workspace_id=written["workspace_id"], **arguments)


async def test_what_is_not_nccl_is_nothing_to_transform(client: Client):
    found = await call(client, "analyze_nccl", source="__global__ void k() {}")
    written = await call(client, "write_files", files={"a.cu": "not CUDA }}}"})
    made = await call(client, "transform_nccl", workspace_id=written["workspace_id"])

    assert found["status"] == made["status"] == "nothing to transform"


async def test_expressions_nested_without_end_are_refused_or_left_out_and_that_is_said(client: Client):
    deep = "+".join(["cudaMemcpy(p, q, 4, k)", *["1"] * 3000])
    text = f"__global__ void k(float* p) {{ p[0] = {deep}; }}\nvoid run() {{ int n = {deep}; ncclSend(p, n, t, 0, c, s); }}"
    result = await client.call_tool("analyze_nccl", {"source": text})
    (content,) = result.content

    assert isinstance(content, TextContent)
    assert "nest" in content.text and "incident" not in content.text
