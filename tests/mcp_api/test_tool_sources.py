import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, PathRefused
from gpu_mcp_server.mcp_api.tool_sources import SourceResolver
from gpu_mcp_server.models.build import LANGUAGES, CandidateLanguage, Language
from gpu_mcp_server.models.comparison import CandidateSpec
from gpu_mcp_server.services.builds.build_plans import MISSING
from gpu_mcp_server.services.builds.candidate_source import MAX_SOURCE_BYTES, CandidateSource, source_of
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database


@pytest.fixture
async def workspaces(tmp_path: Path) -> AsyncIterator[Workspaces]:
    async with await Database.open(tmp_path / "store" / "lab.sqlite3") as db:
        yield Workspaces(db, Artifacts(tmp_path / "store", db))


async def test_text_needs_its_language_said(workspaces: Workspaces):
    assert await source_of(workspaces, text="int x;", language="cuda") == CandidateSource("int x;", "cuda", "kernel.cu")
    assert (await source_of(workspaces, text="int x;", language="cpp")).name == "kernel.cpp"
    with pytest.raises(BadRequest, match="c, cpp, cuda"):
        await source_of(workspaces, text="int x;")
    with pytest.raises(BadRequest, match="fortran"):
        await source_of(workspaces, text="int x;", language="fortran")


@pytest.mark.parametrize(
    ("name", "language"), [("k.c", "c"), ("k.cpp", "cpp"), ("k.cc", "cpp"), ("k.CU", "cuda"), ("k.cu", "cuda")]
)
async def test_a_suffix_says_the_language(workspaces: Workspaces, tmp_path: Path, name: str, language: str):
    (tmp_path / name).write_text("int x;")
    source = await source_of(workspaces, path=str(tmp_path / name), allow_local=True)
    assert (source.language, source.name) == (language, name)


async def test_a_path_with_a_workspace_is_read_there(workspaces: Workspaces):
    workspace_id = (await workspaces.write(None, {"src/k.cu": "int x;", "k.txt": "int x;"})).workspace_id
    source = await source_of(workspaces, path="src/k.cu", workspace_id=workspace_id)
    assert source == CandidateSource("int x;", "cuda", "k.cu")
    with pytest.raises(BadRequest, match="suffix"):
        await source_of(workspaces, path="k.txt", workspace_id=workspace_id)
    assert (await source_of(workspaces, path="k.txt", workspace_id=workspace_id, language="c")).language == "c"
    with pytest.raises(PathRefused):
        await source_of(workspaces, path="../../etc/passwd", workspace_id=workspace_id, language="c")
    with pytest.raises(NotFound, match="list_files"):
        await source_of(workspaces, path="gone.cu", workspace_id=workspace_id)
    with pytest.raises(NotFound, match="workspace"):
        await source_of(workspaces, path="k.cu", workspace_id="w-none")


async def test_local_files_are_read_only_where_that_is_allowed(workspaces: Workspaces):
    with pytest.raises(BadRequest, match="write_files"):
        await source_of(workspaces, path="/etc/passwd", language="c")


async def test_exactly_one_of_text_and_path_is_wanted(workspaces: Workspaces):
    for arguments in ({}, {"text": "x", "path": "y"}):
        with pytest.raises(BadRequest, match="either"):
            await source_of(workspaces, **arguments, language="c", allow_local=True)
    with pytest.raises(BadRequest, match="workspace_id"):
        await source_of(workspaces, text="x", workspace_id="w-1", language="c")


@pytest.mark.parametrize("junk", [b"\x7fELF\0\0", b"\xff\xfe", b"int x;\0", b"", b" \n"])
async def test_binary_junk_and_nothing_are_refused(workspaces: Workspaces, tmp_path: Path, junk: bytes):
    (tmp_path / "k.c").write_bytes(junk)
    with pytest.raises(BadRequest, match=r"junk|empty"):
        await source_of(workspaces, path=str(tmp_path / "k.c"), allow_local=True)
    if junk.isascii():
        with pytest.raises(BadRequest, match=r"junk|empty"):
            await source_of(workspaces, text=junk.decode(), language="c")


async def test_surrogates_in_a_text_are_junk(workspaces: Workspaces):
    with pytest.raises(BadRequest, match="junk"):
        await source_of(workspaces, text="\ud800", language="c")


async def test_over_a_mebibyte_is_too_large_from_everywhere(workspaces: Workspaces, tmp_path: Path):
    (tmp_path / "k.c").write_text("x" * (MAX_SOURCE_BYTES + 1))
    workspace_id = (await workspaces.write_local(None, tmp_path / "k.c")).workspace_id
    with pytest.raises(LimitExceeded):
        await source_of(workspaces, text="x" * (MAX_SOURCE_BYTES + 1), language="c")
    with pytest.raises(LimitExceeded):
        await source_of(workspaces, path=str(tmp_path / "k.c"), allow_local=True)
    with pytest.raises(LimitExceeded):
        await source_of(workspaces, path="k.c", workspace_id=workspace_id)


async def test_a_vanished_file_a_folder_a_pipe_and_a_nul_say_what_is_wrong(workspaces: Workspaces, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.c")
    (tmp_path / "folder.c").mkdir()
    with pytest.raises(NotFound, match="Check the path"):
        await source_of(workspaces, path=str(tmp_path / "gone.c"), allow_local=True)
    for name in ("pipe.c", "folder.c", "nul\0.c"):
        with pytest.raises(PathRefused):
            await source_of(workspaces, path=str(tmp_path / name), allow_local=True)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("class ModelNew:\n    pass\ndef launch(x):\n    pass\n", "python"),
        ("import triton\n\ndef launch(x, y, n):\n    pass\n", "triton"),
        ("class Gate(torch.nn.Module):\n    pass\ndef get_inputs():\n    pass\n", "python"),
        ("import triton\ndef _own(data):\n    pass\ncustom_kernel = torch.compile(_own)\n", "python"),
        ("class Gate(nn.Module):\n    pass\ndef launch(x, y):\n    pass\n", "launcher"),
    ],
)
async def test_a_python_file_is_told_from_its_content(workspaces: Workspaces, text: str, language: str):
    workspace_id = (await workspaces.write(None, {"k.py": text})).workspace_id
    source = await source_of(workspaces, path="k.py", workspace_id=workspace_id)

    assert (source.language, source.name) == (language, "k.py")


def test_every_language_has_its_facts_and_no_two_share_a_suffix():
    suffixes = [suffix for facts in LANGUAGES.values() for suffix in facts.suffixes]
    compiled = get_args(Language)

    assert set(LANGUAGES) == set(get_args(CandidateLanguage)) >= set(compiled)
    assert len(suffixes) == len(set(suffixes))
    assert set(MISSING) == set(compiled), "what to say where a compiler is missing"


@pytest.mark.parametrize(("text", "words"), [("x = 1\n", "neither a class ModelNew"), ("def f(:\n", "not Python")])
async def test_a_python_file_that_is_no_candidate_is_refused(workspaces: Workspaces, text: str, words: str):
    workspace_id = (await workspaces.write(None, {"k.py": text})).workspace_id
    with pytest.raises(BadRequest, match=words):
        await source_of(workspaces, path="k.py", workspace_id=workspace_id)


async def test_the_candidate_whose_source_cannot_be_read_is_named(workspaces: Workspaces):
    candidates = [
        CandidateSpec(name=name, source=text, language="c") for name, text in (("one", "int x;"), ("two", ""))
    ]
    with pytest.raises(BadRequest, match="None was judged, as of candidate 'two': The source is empty"):
        await SourceResolver(workspaces, local_files=True).resolve_many(candidates)


SEVERAL = {
    "own/k.py": "from __future__ import annotations\nimport json\nfrom parts.scale import twice\nimport helpers\n"
    "def launch(x, y):\n    y[:] = [helpers.plus_one(twice(v)) for v in x]\n",
    "own/parts/__init__.py": "",
    "own/parts/scale.py": "from .factors import TWO\ndef twice(v):\n    return TWO * v\n",
    "own/parts/factors.py": "TWO = 2\ndef unused():\n    import triton\n",
    "own/helpers.py": "import os\ndef plus_one(v):\n    return v + 1\n",
    "own/json.py": "raise RuntimeError('an installed module comes first')\n",
    "own/stranger.py": "1 / 0",
    "secret.py": "SECRET = 1",
}


async def test_a_python_file_brings_along_what_it_imports_from_its_folder(workspaces: Workspaces, tmp_path: Path):
    """By the path of a local file and of a workspace's; what it does not import, and what lies outside, stays away."""
    for name, text in SEVERAL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    workspace_id = (await workspaces.write(None, SEVERAL)).workspace_id
    near = await source_of(workspaces, path=str(tmp_path / "own/k.py"), allow_local=True)
    far = await source_of(workspaces, path="own/k.py", workspace_id=workspace_id)
    assert near.text == far.text and "1 / 0" not in near.text
    assert near.language == "launcher" and "if False:\n    import triton" in near.text
    (tmp_path / "whole.py").write_text(near.text + "\ny = [0, 0]\nlaunch([3, 4], y)\nprint(y, json.dumps(1))\n")
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "whole.py")], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == "[7, 9] 1\n"

    (tmp_path / "own" / "out.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "own" / "leaves.py").write_text("import out\ndef launch(x, y): ...\n")
    assert "SECRET" not in (await source_of(workspaces, path=str(tmp_path / "own/leaves.py"), allow_local=True)).text
    alone = "import json\ndef launch(x, y): ...\n"
    (tmp_path / "alone.py").write_text(alone)
    assert (await source_of(workspaces, path=str(tmp_path / "alone.py"), allow_local=True)).text == alone


async def test_a_python_file_brings_no_more_than_64_others(workspaces: Workspaces, tmp_path: Path):
    for number in range(66):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n")
    (tmp_path / "k.py").write_text("import m0\ndef launch(x, y): ...\n")
    with pytest.raises(LimitExceeded, match="more than 64 files"):
        await source_of(workspaces, path=str(tmp_path / "k.py"), allow_local=True)
