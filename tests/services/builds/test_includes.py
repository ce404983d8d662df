"""Headers of a source's own workspace or folder go with it to its compiler, and nothing else of it does."""

import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.errors import LimitExceeded
from gpu_mcp_server.hostd.probe.header_trees import probe_header_trees
from gpu_mcp_server.mcp_api.tool_sources import SourceResolver
from gpu_mcp_server.models.build import BuildOptions, CompileResult
from gpu_mcp_server.models.toolchains import HeaderTree
from gpu_mcp_server.services.builds import includes
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains.header_trees import include_options, linking_arguments, trees_of
from tests.laboratory import Folder, settings_for

FILES = {
    "src/f.c": '#include "near.h"\n#include "../inc/far.h"\n#include <math.h>\nint f(void) { return NEAR + FAR; }\n',
    "src/near.h": "#define NEAR 1\n",
    "inc/far.h": '#pragma once\n#include "farther.h"\n',
    "inc/farther.h": '#include "far.h"\n#define FAR 2\n',
    "src/unread.h": "#error never included\n",
}


async def compiled(lab: Lab, workspace_id: str | None, path: str, **wish: object) -> CompileResult:
    flags = tuple(wish.get("flags", ()))  # type: ignore[call-overload]
    source = await SourceResolver(lab.store.workspaces, local_files=True).compilable(
        None, path, workspace_id, None, flags
    )
    return await lab.builds.compiler.compile(source, BuildOptions.model_validate({"library": False, **wish}))


async def test_what_is_included_from_the_workspace_is_there_at_any_depth(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, FILES)).workspace_id
    result = await compiled(lab, workspace, "src/f.c")
    assert result.status == "ok", result.summary()
    broken = {"inc/farther.h": "#define FAR wrong_name\n"}
    await lab.store.workspaces.write(workspace, broken)
    result = await compiled(lab, workspace, "src/f.c")
    assert (result.status, result.cached) == ("failed", False), "a header is part of what the cache goes by"
    assert (result.diagnostics[0].file, result.diagnostics[0].line) == ("inc/farther.h", 1), result.summary()


async def test_files_that_are_not_included_do_not_make_it_another_build(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, {**FILES, "src/near.h": "#define NEAR 3\n"})).workspace_id
    assert not (await compiled(lab, workspace, "src/f.c")).cached
    await lab.store.workspaces.write(workspace, {"src/unread.h": "#error still not\n", "README": "changed"})
    assert (await compiled(lab, workspace, "src/f.c")).cached


async def test_folders_given_by_flag_are_searched_and_a_missing_header_is_named_with_the_way(lab: Lab):
    files = {"k.cpp": "#include <lib/x.hpp>\nint f() { return X; }\n", "include/lib/x.hpp": "#define X 4\n"}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    assert (await compiled(lab, workspace, "k.cpp", flags=("-Iinclude",))).status == "ok"
    result = await compiled(lab, workspace, "k.cpp")
    assert (result.status, result.diagnostics[0].line) == ("failed", 1)
    assert "lib/x.hpp" in result.diagnostics[0].message and "-IFOLDER" in (result.diagnostics[0].hint or "")


async def test_headers_of_a_local_file_lie_in_its_folder_and_not_above_it(lab: Lab, tmp_path: Path):
    (tmp_path / "p").mkdir()
    (tmp_path / "secret.h").write_text("#define SECRET 1\n")
    (tmp_path / "p" / "x.h").write_text("#define X 1\n")
    (tmp_path / "p" / "a.c").write_text('#include "x.h"\nint f(void) { return X; }\n')
    (tmp_path / "p" / "b.c").write_text('#include "../secret.h"\nint f(void) { return SECRET; }\n')
    assert (await compiled(lab, None, str(tmp_path / "p" / "a.c"))).status == "ok"
    above = await compiled(lab, None, str(tmp_path / "p" / "b.c"))
    assert above.status == "failed" and "secret.h" in above.diagnostics[0].message


@pytest.mark.parametrize("in_a_row", [True, False])
async def test_more_headers_than_go_with_a_source_are_refused_with_the_way_out(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_a_row: bool
):
    """As many as there is room for go with it; one more would be missing at the compiler, though it is there."""
    names = [f"h{n}.h" for n in range(600)]
    for name, following in zip(names, [*names[1:], ""], strict=True):
        (tmp_path / name).write_text(f'#pragma once\n#include "{following}"\n' if in_a_row and following else "")
    source = "".join(f'#include "{name}"\n' for name in (names[:1] if in_a_row else names))
    (tmp_path / "a.c").write_text(source)
    taken = await SourceResolver(lab.store.workspaces, local_files=True).compilable(
        None, str(tmp_path / "a.c"), None, None
    )
    assert len(taken.beside) == 600
    monkeypatch.setattr(includes, "MAX_HEADERS_BYTES", sum(map(len, taken.beside.values())) + 30)
    (tmp_path / "one_more.h").write_text("#define MORE 1\n")
    (tmp_path / names[-1]).write_text('#include "one_more.h"\n')
    with pytest.raises(LimitExceeded, match=r"600 files fit, 'one_more.h' does not"):
        await compiled(lab, None, str(tmp_path / "a.c"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
async def test_compilers_of_cuda_find_them_as_well(lab: Lab):
    kernel = '#include "../inc/two.cuh"\n__global__ void k(float *x) { x[0] = two(); }\n'
    files = {"src/k.cu": kernel, "inc/two.cuh": "__device__ inline float two() { return 2.0f; }\n"}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    result = await compiled(lab, workspace, "src/k.cu", arch="sm_90")
    assert result.status == "ok" and result.resources[0].kernel == "k(float*)", result.summary()
    if (await lab.hosts.probe("local")).toolchains.nvrtc is not None:
        again = await compiled(lab, workspace, "src/k.cu", arch="sm_90", compiler="nvrtc")
        assert again.status == "ok" and again.compiler.startswith("nvrtc "), again.summary()


async def test_folders_of_the_settings_are_searched_and_their_digest_is_evidence(tmp_path: Path):
    tree = tmp_path / "tree" / "mine"
    tree.mkdir(parents=True)
    tmp_path.chmod(0o755)
    (tree / "size.h").write_text("#define SIZE 4\n")
    found: list[CompileResult] = []
    with Folder() as folder:
        for text in ("#define SIZE 4\n", "#define SIZE 5\n"):
            (tree / "size.h").write_text(text)
            host = {"kind": "local", "include_paths": [str(tree.parent)]}
            async with Lab.open(settings_for(folder, hosts={"local": host})) as lab:
                source = CandidateSource("#include <mine/size.h>\nint f(void) { return SIZE; }\n", "c", "f.c")
                found.append(await lab.builds.compiler.compile(source, BuildOptions(library=False)))
                kept = await lab.store.experience.get(found[-1].attempt_id or "")
                assert kept.evidence["headers"] == found[-1].headers
    first, second = found
    assert first.status == second.status == "ok", first.summary()
    assert not second.cached and first.headers != second.headers, "another content is another build"
    assert first.headers[0].startswith(f"include_paths in {tree.parent}, sha256 ")


async def test_a_tree_is_given_to_sources_that_read_it_and_found_where_wheels_have_it(tmp_path: Path):
    include = tmp_path / "site/cutlass_library/source/include"
    (include / "cutlass").mkdir(parents=True)
    (include / "cutlass/cutlass.h").write_text("#pragma once\n")
    (include / "cutlass/version.h").write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n"
    )
    util = tmp_path / "site/cutlass_library/source/tools/util/include"
    util.mkdir(parents=True)
    python = {"site": str(tmp_path / "site"), "roots": [str(tmp_path)]}
    found = [t for t in probe_header_trees([], [python]) if str(tmp_path) in t["folders"][0]]
    (tree,) = [HeaderTree.model_validate(t) for t in found]
    assert (tree.name, tree.version, tree.folders) == ("cutlass", "4.2.0", [str(include), str(util)])
    assert trees_of(["#include <cute/tensor.hpp>\n"], [tree]) == [tree]
    assert trees_of(["#include <vector>\n"], [tree]) == []
    assert trees_of(["#include <cute/tensor.hpp>\n"], [tree], ["include/cute/tensor.hpp"]) == [], "it brings its own"
    assert include_options([tree], "nvcc") == (f"-isystem={include}", f"-isystem={util}")
    command = ("g++", "-shared", "-Wl,-z,defs")
    assert linking_arguments(command, [tree]) == command
    assert linking_arguments(command, [tree.model_copy(update={"name": "tvm-ffi"})]) == command[:2]
    before = tree.sha256
    (include / "cutlass/cutlass.h").write_text("#pragma once\n\n")
    assert [t["sha256"] for t in probe_header_trees([], [python]) if t["name"] == "cutlass"] != [before]
