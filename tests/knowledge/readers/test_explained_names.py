"""Environment variables and built-in names that people ask for are there without any toolkit."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.search.edition_scope import OURS
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.package_files import content_path

BASE = content_path("knowledge_base")
FILES = sorted([*(BASE / "environment").glob("*.toml"), *(BASE / "builtins").glob("*.toml")])


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexReader]:
    storage = Storage(tmp_path_factory.mktemp("data"))
    build(storage, only={*OURS})
    folder = storage.current()
    assert folder is not None
    reader = IndexReader(folder)
    yield reader
    reader.close()


@pytest.mark.parametrize("kinds", [("env",), ()])
@pytest.mark.parametrize(
    "name", ["NCCL_P2P_DISABLE", "NCCL_IB_HCA", "CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND", "UCX_TLS", "MASTER_PORT"]
)
def test_a_variable_is_found_by_its_name(ours: IndexReader, name: str, kinds: tuple[str, ...]):
    answer = ours.ask(name, kinds=kinds)

    assert (answer.hits[0].name, answer.hits[0].kind, answer.hits[0].match) == (name, "env", "symbol")
    assert answer.missing == []


@pytest.mark.parametrize(
    "name", ["__syncthreads", "threadIdx", "__launch_bounds__", "MPI_ERR_TRUNCATE", "MPI_FLOAT", "MPI_IN_PLACE"]
)
def test_a_built_in_name_is_found(ours: IndexReader, name: str):
    hit = ours.ask(name).hits[0]

    assert (hit.match, hit.edition.library) == ("symbol", "builtins")
    assert name in hit.title


@pytest.mark.parametrize(
    ("pasted", "name"),
    [
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "mma.sync"),
        ("wgmma.wait_group.sync.aligned 0;", "wgmma.fence"),
        ("tcgen05.ld.sync.aligned.16x64b.x2.b32", "tcgen05.ld"),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "cp.async.bulk.tensor"),
        ("cp.async.ca.shared.global", "cp.async"),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16", "stmatrix"),
    ],
)
def test_an_instruction_is_found_with_its_modifiers(ours: IndexReader, pasted: str, name: str):
    answer = ours.ask(pasted)

    assert (answer.hits[0].name, answer.hits[0].match) == (name, "symbol")
    assert answer.missing == []


def test_a_variable_is_found_with_its_library(ours: IndexReader):
    assert ours.ask("NCCL_ALGO", library="nccl").hits[0].name == "NCCL_ALGO"


def test_a_variable_that_nobody_wrote_about_is_missing(ours: IndexReader):
    assert (
        ours.ask("NCCL_FROBNICATE", kinds=("env",)).missing[0].startswith("nothing indexed is called NCCL_FROBNICATE")
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_of_each_name_what_it_takes_and_does(path: Path):
    content = tomllib.loads(path.read_text())

    assert re.match(r"https://", content["source"])
    names = [name for each in content["entry"] for name in each["names"]]
    assert len(names) == len(set(names))
    assert all(set(each) - {"default"} == {"names", "values", "means"} for each in content["entry"])
    assert all(re.fullmatch(r"[\w.]+" if content["kind"] == "instruction" else r"\w+", name) for name in names)
