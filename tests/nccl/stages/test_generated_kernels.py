"""The generated kernels with threads in the place of GPUs: what each rank holds afterwards, and how parts are paired.

That tests their arithmetic; it proves nothing of memory order, and a kernel is one thread there.
"""

import re
import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.nccl.templates import KernelApi, infrastructure, kernels

THREADS = Path(__file__).parents[1] / "emulation" / "threads"
LAUNCH = re.compile(r"<<<[^;]*?>>>")
PAIRED = "for (int j = 0; j < i; j++) k += x.received[j].peer == peer;"


def built(folder: Path, changed: tuple[str, str] = ("", ""), api: KernelApi = "lsa") -> Path:
    """Compile collectives.cpp with the generated files: launches become calls."""
    assert not changed[0] or changed[0] in kernels(api)
    files = {"ncclx.cuh": infrastructure(), "ncclx_kernels.cuh": kernels(api).replace(*changed)}
    for name, text in files.items():
        (folder / name).write_text(LAUNCH.sub("", text), encoding="utf-8")
    command = ["g++", "-std=c++17", "-O1", "-w", "-pthread", f"-I{THREADS}", f"-I{folder}"]
    subprocess.run([*command, str(THREADS / "collectives.cpp"), "-o", str(folder / "program")], check=True)
    return folder / "program"


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_roots_rings_and_parts_of_any_size_leave_what_they_must(program: Path, ranks: int):
    done = run(program, str(ranks))

    assert (done.returncode, done.stdout) == (0, "end wrong=0\n")
    assert "host_fallbacks=0" in done.stderr and "host nccl" not in done.stderr


@pytest.fixture(scope="module")
def by_gin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("gin"), api="gin")


@pytest.mark.parametrize("ranks", [1, 3])
def test_by_gin_too_roots_rings_and_parts_of_any_size_leave_what_they_must(by_gin: Path, ranks: int):
    done = run(by_gin, str(ranks))

    assert (done.returncode, done.stdout) == (0, "end wrong=0\n"), done.stderr
    assert "host_fallbacks=0" in done.stderr and "host nccl" not in done.stderr


def test_by_gin_too_a_part_of_another_size_is_trapped(by_gin: Path):
    done = run(by_gin, "3", "fault")

    assert done.returncode == 7 and "trap" in done.stderr


@pytest.mark.parametrize("how", ["fault", "alone"])
def test_a_part_of_another_size_than_was_sent_is_trapped_and_not_delivered(program: Path, how: str):
    done = run(program, "3", how)

    assert done.returncode == 7 and "trap" in done.stderr


def test_an_all_to_all_without_a_send_buffer_is_left_to_nccl_which_refuses_it(program: Path):
    done = run(program, "2", "null")

    assert "fallback AlltoAll: there is no send buffer" in done.stderr and "host ncclAlltoAll" in done.stderr
    assert "fallback AllGather: there is no send buffer" in done.stderr and "host ncclAllGather" in done.stderr
    assert done.stdout == "end wrong=0\n"


def test_parts_that_are_paired_without_their_order_are_noticed(tmp_path: Path):
    done = run(built(tmp_path, (PAIRED, "")), "2")

    assert done.returncode != 0 and "wrong ring" in done.stdout
