"""Guides: their parts, their links, that none repeats another, and that every example compiles or runs."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from gpu_mcp_server.toolchains.architectures import nvcc_options
from tests.driver_stub import driver_stub
from tests.judge.harness import torch_python
from tests.judge.launchers import compile_launcher
from tests.knowledge.guides import FOLDER, GUIDES, Example, Guide, prose, read

LIBRARIES = {"cuda", "hip", "sycl", "triton", "cute-dsl", "tilelang", "nccl", "mpi"}
KINDS = {"performance", "correctness", "porting", "profiling", "communication"}
ARCHITECTURE = re.compile(r"(any|sm_\d{2,3}[af]?\+?|gfx\w+\+?)")
CLOSING = ["Example", "What it is not for", "Sources"]
NEEDS = {
    "cuda": {"sm_80", "sm_90a", "nccl", "mpi"},
    "hip": {"gfx90a", "gfx942"},
    "python": {"torch", "cute", "tilelang"},
    "sycl": set(),
}
LANGUAGES = {*NEEDS, "console"}

each_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.path.stem)


def examples(language: str, *needs: str) -> list[tuple[Guide, Example]]:
    return [(g, e) for g in GUIDES for e in g.examples if e.language == language and set(needs) <= set(e.needs)]


@each_guide
def test_a_guide_has_its_parts(guide: Guide):
    front = guide.front
    assert list(front) == ["title", "libraries", "architectures", "kinds", "keywords"]
    assert front["title"] == guide.title
    assert front["libraries"] and set(front["libraries"]) <= LIBRARIES
    assert front["kinds"] and set(front["kinds"]) <= KINDS
    assert front["architectures"] and all(ARCHITECTURE.fullmatch(a) for a in front["architectures"])
    assert len({k.lower() for k in front["keywords"]}) == len(front["keywords"]) >= 8
    assert list(guide.sections)[-3:] == CLOSING and len(guide.sections) >= 6
    assert guide.examples and {e.language for e in guide.examples} <= LANGUAGES
    for example in guide.examples:
        assert set(example.needs) <= NEEDS.get(example.language, set()), example.needs


@each_guide
def test_every_figure_can_be_traced_to_a_listed_source(guide: Guide):
    text = "\n".join(text for name, text in guide.sections.items() if name != "Sources")
    cited = set(re.findall(r"\[(\d+)\]", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)))
    listed = re.findall(r"^(\d+)\. ", guide.sections["Sources"], re.MULTILINE)
    assert listed == [str(n + 1) for n in range(len(listed))] and listed
    assert cited == set(listed)


@each_guide
def test_a_section_is_one_answer_and_no_chapter(guide: Guide):
    for name, text in guide.sections.items():
        words = len(prose(text).split())
        assert words <= 260 and (words >= 5 or name in CLOSING), f"{name}: {words} words"
        assert max((len(line) for line in text.splitlines()), default=0) <= 180, name


@each_guide
def test_links_lead_somewhere(guide: Guide):
    for link in guide.links:
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = (guide.path.parent / place) if place else guide.path
        assert target.is_file(), link
        assert not anchor or anchor in read(target).anchors, link


def test_every_guide_is_asked_for_and_every_accepted_section_exists():
    questions = tomllib.loads((FOLDER.parent / "questions" / "guides.toml").read_text(encoding="utf-8"))["question"]
    accepted = [
        a.removeprefix("src:guides/").split("|") for q in questions for a in q["accept"] if a.startswith("src:guides/")
    ]
    known = {guide.path.stem: [guide.title, *guide.sections] for guide in GUIDES}
    for stem, heading in accepted:
        assert any(re.search(heading, name) for name in known[stem]), f"{stem}: {heading}"
    assert {stem for stem, _ in accepted} == known.keys()


def test_no_guide_repeats_another():
    seen: dict[tuple[str, ...], str] = {}
    for guide in GUIDES:
        words = re.findall(r"\w+", prose("\n".join(t for n, t in guide.sections.items() if n != "Sources")).lower())
        for at in range(len(words) - 11):
            piece = tuple(words[at : at + 12])
            assert seen.setdefault(piece, guide.path.stem) == guide.path.stem, f"{guide.path.stem}: {' '.join(piece)}"
    headings = Counter(name for guide in GUIDES for name in guide.sections if name not in CLOSING)
    assert [name for name, count in headings.items() if count > 1] == []
    assert len({guide.title for guide in GUIDES}) == len(GUIDES)


def one_unit(found: list[tuple[Guide, Example]], folder: Path, suffix: str) -> Path:
    """Join examples to one source, each in a namespace, with lines that name its guide."""
    includes: dict[str, None] = {}
    parts: list[str] = []
    for number, (guide, example) in enumerate(found):
        includes |= dict.fromkeys(re.findall(r"^#include.*$", example.code, re.MULTILINE))
        body = re.sub(r"^#include.*$", "", example.code, flags=re.MULTILINE)
        parts.append(f'namespace guide{number} {{\n#line {example.line} "{guide.path.name}"\n{body}}}\n')
    unit = folder / f"guides{suffix}"
    unit.write_text("\n".join([*includes, *parts]), encoding="utf-8")
    return unit


def compiles(command: list[str | Path], cwd: Path, **environment: str) -> None:
    told = {**os.environ, "TMPDIR": str(cwd), **environment}  # clang leaves folders there for each device
    done = subprocess.run(command, cwd=cwd, env=told, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def nccl_headers() -> Path | None:
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl" / "include"
    named = os.environ.get("TEST_NCCL_INCLUDE")
    return Path(named) if named else folder if folder.is_dir() else None


def links(unit: Path, arch: str, *options: str) -> None:
    """Compile a unit and link it, so that whatever it calls must be in one of the libraries named."""
    command = ["nvcc", "-std=c++17", *nvcc_options(arch), "-shared", "-Xcompiler=-fPIC", "-Xlinker=-z,defs"]
    compiles([*command, unit, "-o", unit.with_suffix(".so"), *options], unit.parent)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_cuda_examples_compile_and_link(tmp_path: Path, arch: str):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    found = [(g, e) for g, e in examples("cuda", arch) if not {"nccl", "mpi"} & set(e.needs)]
    flags = {flag for _, e in found for flag in re.findall(r"Link with (-l\w+)", e.code)}
    assert flags == ({"-lcuda"} if arch == "sm_90a" else set()), "say here what else an example links"
    stub = [f"-L{driver_stub(tmp_path / 'stubs').parent}"] if flags else []
    links(one_unit(found, tmp_path, ".cu"), arch, "-Werror", "all-warnings", *stub, *sorted(flags))


def test_an_example_that_links_nothing_it_needs_would_be_seen(tmp_path: Path):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    unit = tmp_path / "k.cu"
    unit.write_text("#include <cuda.h>\nCUresult begun() { return cuInit(0); }\n")
    with pytest.raises(AssertionError, match="undefined reference to `cuInit'"):
        links(unit, "sm_80")


def test_nccl_examples_compile_and_link(tmp_path: Path):
    headers = nccl_headers()
    if not shutil.which("nvcc") or not headers:
        pytest.skip("nvcc or NCCL's headers are not installed (pip install nvidia-nccl-cu13)")
    folder = headers.parent / "lib"
    if not (folder / "libnccl.so.2").exists():
        pytest.skip(f"NCCL's examples cannot be linked: {folder} has no libnccl.so.2 beside the headers")
    unit = one_unit(examples("cuda", "nccl"), tmp_path, ".cu")
    links(unit, "sm_90a", f"-I{headers}", f"-L{folder}", "-l:libnccl.so.2")


def test_mpi_examples_compile_and_link(tmp_path: Path):
    if not shutil.which("nvcc") or not shutil.which("mpicxx"):
        pytest.skip("nvcc or mpicxx is not installed")

    def shown(what: str) -> list[str]:
        asked = ["mpicxx", f"--showme:{what}"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()

    folders = [f"-I{f}" for f in shown("incdirs")] + [f"-L{f}" for f in shown("libdirs")]
    unit = one_unit(examples("cuda", "mpi"), tmp_path, ".cu")
    links(unit, "sm_80", *folders, *[f"-l{name}" for name in shown("libs")])


def test_hip_examples_compile_and_link(tmp_path: Path):
    if not shutil.which("hipcc"):
        pytest.skip("hipcc is not installed (make system)")
    unit = one_unit(examples("hip"), tmp_path, ".hip")
    shared = ["-shared", "-fPIC", "-Wl,-z,defs", "-o", tmp_path / "guides.so"]
    compiles(["hipcc", "--offload-arch=gfx90a", "-Wall", "-Werror", *shared, unit], tmp_path, HIP_PLATFORM="amd")


def sycl_headers() -> str:
    """Return the headers of the wheel intel-sycl-rt, which lie beside Python's own."""
    beside = Path(sysconfig.get_path("data")) / "include"
    return os.environ.get("TEST_SYCL_INCLUDE") or (str(beside) if (beside / "sycl" / "sycl.hpp").is_file() else "")


def test_sycl_examples_are_sound(tmp_path: Path):
    if not sycl_headers():
        pytest.skip("no SYCL headers (pip install intel-sycl-rt, or set TEST_SYCL_INCLUDE)")
    unit = one_unit(examples("sycl"), tmp_path, ".cpp")
    # Not linked: the wheels have headers and library, and no compiler that makes kernels for them.
    quiet = ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-isystem{sycl_headers()}"]
    compiles(["g++", "-std=c++17", "-fsyntax-only", *quiet, unit], tmp_path)


def test_python_examples_run(tmp_path: Path):
    run_all(tmp_path, sys.executable, [found for found in examples("python") if not found[1].needs])


def test_triton_examples_run_under_the_interpreter(tmp_path: Path):
    if not torch_python():
        pytest.skip("no Python with torch: set TEST_TORCH_PYTHON")
    run_all(tmp_path, torch_python(), examples("python", "torch"))


@pytest.mark.parametrize(
    ("need", "signature"),
    [
        ("cute", {"x": "fp32[4096]", "y": "fp32[4096]"}),
        ("tilelang", {"a": "fp16[256,512]", "b": "fp16[512,1024]", "c": "fp16[256,1024]"}),
    ],
)
def test_examples_of_launchers_compile(tmp_path: Path, need: str, signature: dict[str, str]):
    ((_, example),) = examples("python", need)
    compile_launcher(tmp_path, example.code, signature, {"n": 1024, "m": 256, "k": 512}, by_nvcc=need == "tilelang")


def run_all(folder: Path, python: str, found: list[tuple[Guide, Example]]) -> None:
    """Run examples as programs, one after the other in one process: torch takes seconds to import."""
    for guide, example in found:
        ast.parse(example.code, filename=guide.path.name)
        (folder / f"{guide.path.stem}.py").write_text(example.code, encoding="utf-8")
    names = [f"{guide.path.stem}.py" for guide, _ in found]
    runner = "import runpy, sys\nfor name in sys.argv[1:]: runpy.run_path(name, run_name='__main__')"
    compiles([python, "-c", runner, *names], folder, TRITON_INTERPRET="1")


def test_there_are_guides_and_the_readme_says_how_to_add_one():
    assert len(GUIDES) >= 15
    assert "guides/" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")
