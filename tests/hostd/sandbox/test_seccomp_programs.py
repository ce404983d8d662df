"""Compilers, sanitizers, debuggers and parallel programs under the system call filter, without any other wall.

What they call was counted on Linux 6.18 with `strace -f -c`, without the filter: 127 calls in all. Of these the filter
denies two, and both callers do without.

| calls | program | of them denied |
| --- | --- | --- |
| 34, 34, 36 | gcc 12, g++ 12, clang 19 | |
| 56, 37 | nvcc 13.0, hipcc 5.2 over nvcc | |
| 23, 31, 19 | OpenMP of gcc, of clang, CUDA runtime without a driver | |
| 39, 81 | mpicc, mpirun of Open MPI 4.1 with 2 ranks | process_vm_readv: a message, then copies through shared memory |
| 59, 49, 24 | CMake 3.25, ninja, make | |
| 28, 34, 39, 21 | AddressSanitizer, ThreadSanitizer of gcc and clang, MemorySanitizer | ptrace, by the search for leaks |
| 43 | valgrind 3.19 | |
| 72, 73, 47 | pytest with pools and asyncio, torch 2.13 on the processor, Triton 3.9 | |
| 65 | rustc | |
| 21, 19 | numactl, `setarch -R` | |
| 45 | liburing 2.3 | io_uring_setup: the caller is told -EPERM |
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.sandbox import seccomp

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in seccomp.AUDIT_ARCH, reason="the filter is for Linux"
)

BIND = """
import os, sys
from gpu_mcp_server.hostd.sandbox import seccomp
seccomp.install(seccomp.architecture(), sys.argv[1] == "profiler")
os.execvp(sys.argv[2], sys.argv[2:])
"""
THREADS = """
#include <omp.h>
#include <stdio.h>
int main(void) {
    int n = 0;
#pragma omp parallel num_threads(3) reduction(+ : n)
    n += 1;
    printf("threads %d\\n", n);
    return 0;
}
"""
RACE = """
#include <pthread.h>
int x;
void *add(void *p) { for (int i = 0; i < 1000; i++) x++; return p; }
int main(void) {
    pthread_t a, b;
    pthread_create(&a, 0, add, 0); pthread_create(&b, 0, add, 0);
    pthread_join(a, 0); pthread_join(b, 0);
    return 0;
}
"""
MISTAKES = """
#include <stdlib.h>
int main(int count, char **given) {
    char *volatile p = malloc(7 + count);
    if (count > 1) p[7 + count] = 1;
    p = 0;
    return 0;
}
"""
RANKS = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **given) {
    int rank, size, n = 1 << 20;
    MPI_Init(&count, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *data = calloc(n, 1);
    if (rank == 0) {
        data[n - 1] = 7;
        MPI_Send(data, n, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Recv(data, n, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("got %d of %d ranks\\n", data[n - 1], size);
    }
    MPI_Finalize();
    return 0;
}
"""
POOLS = """
import asyncio, multiprocessing, subprocess, threading
from multiprocessing import shared_memory

def square(x):
    return x * x

def test_pools():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, [2, 3]) == [4, 9]
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.close()
    memory.unlink()

def test_loop():
    async def talk():
        echo = await asyncio.create_subprocess_exec("echo", "x", stdout=subprocess.PIPE)
        assert await echo.stdout.read() == b"x\\n"
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        await asyncio.open_connection(*server.sockets[0].getsockname())
        server.close()
    asyncio.run(talk())

def test_threads():
    thread = threading.Thread(target=square, args=(1,))
    thread.start()
    thread.join()
"""
TORCH = """
import torch
from torch.utils.data import DataLoader

def put(queue, done):
    queue.put(torch.ones(3))
    done.wait()

if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=put, args=(queue, done))
    child.start()
    total = queue.get().sum() + (torch.eye(300) @ torch.eye(300)).sum()
    done.set()
    child.join()
    total += len(list(DataLoader(list(range(8)), num_workers=2)))
    print("total", int(torch.compile(lambda x: x + 1)(total)))
"""
TRITON = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)

types = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
source = triton.compiler.ASTSource(fn=twice, signature=types, constexprs={(2,): 128})
print("ptx" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm)
"""
REWRITTEN = """
#include <stdio.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int status, entered = 0;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        printf("keyctl %ld\\n", syscall(SYS_getppid, 0, -3L, 0L));
        return 0;
    }
    waitpid(child, &status, 0);
    for (;;) {
        struct user_regs_struct registers;
        ptrace(PTRACE_SYSCALL, child, 0, 0);
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) return 0;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        if (registers.orig_rax == SYS_getppid && !entered++) {
            registers.orig_rax = SYS_keyctl;
            ptrace(PTRACE_SETREGS, child, 0, &registers);
        }
    }
}
"""
GDB = ("gdb", "-q", "-batch", "-ex", "break main", "-ex", "run", "-ex", "continue")
LIBURING = "import ctypes\nring = ctypes.create_string_buffer(4096)\n"
LIBURING += "print('ring', ctypes.CDLL('liburing.so.2').io_uring_queue_init(8, ring, 0))"


@dataclass(frozen=True)
class Program:
    """Commands that run one after the other, and what the last one says."""

    name: str
    files: dict[str, str]
    commands: tuple[tuple[str, ...], ...]
    says: str
    profiler: bool = False
    exits: int = 0
    modules: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])


def compiled(
    compiler: str, *flags: str, name: str, text: str, says: str, then: tuple[str, ...] = (), **more
) -> Program:
    made = (compiler, "-g", *flags, "made.c", "-o", "made")
    return Program(name, {"made.c": text}, (made, (*then, "./made", *more.pop("given", ()))), says, **more)


MPIRUN = ("mpirun", "--oversubscribe", "--mca", "btl", "^tcp", "-n", "2")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CMAKE = "cmake_minimum_required(VERSION 3.18)\nproject(made C)\nadd_executable(made made.c)\n"
NO_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0"}
PROGRAMS = (
    compiled("gcc", "-fopenmp", name="gcc and OpenMP", text=THREADS, says="threads 3"),
    compiled("g++", "-fopenmp", "-xc++", name="g++", text=THREADS, says="threads 3"),
    compiled("clang-19", "-fopenmp", name="clang", text=THREADS, says="threads 3"),
    compiled("mpicc", name="Open MPI", text=RANKS, says="got 7 of 2 ranks", then=MPIRUN, env=AS_ROOT),
    compiled("gcc", "-fsanitize=address", name="AddressSanitizer", text=MISTAKES, says="heap-buffer-overflow",
             given=("x",), env=NO_LEAKS, exits=1),
    compiled("gcc", "-fsanitize=address", name="LeakSanitizer of a profiled job", text=MISTAKES,
             says="8 byte(s) leaked", profiler=True, exits=1),
    compiled("gcc", "-fsanitize=thread", name="ThreadSanitizer of gcc", text=RACE, says="data race", exits=66),
    compiled("clang-19", "-fsanitize=thread", name="ThreadSanitizer of clang", text=RACE, says="data race", exits=66),
    compiled("gcc", name="valgrind", text=MISTAKES, says="Invalid write of size 1", then=("valgrind",), given=("x",)),
    compiled("gcc", name="gdb of a profiled job", text=MISTAKES, says="Breakpoint 1, main", then=GDB, profiler=True),
    Program("setarch", {}, (("setarch", "-R", "cat", "/proc/self/personality"),), "00040000"),
    Program("numactl", {}, (("numactl", "--interleave=all", "numactl", "--show"),), "policy: interleave"),
    Program("CMake and ninja", {"CMakeLists.txt": CMAKE, "made.c": THREADS.replace("omp.h", "stddef.h")},
            (("cmake", "-GNinja", "-S.", "-Bb"), ("ninja", "-Cb"), ("b/made",)), "threads 1"),
    Program("nvcc", {"made.cu": "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nint main() { return 0; }\n"},
            (("nvcc", "-arch=sm_90", "made.cu", "-o", "made"), ("nvcc", "--version")), "Cuda compilation tools"),
    Program("hipcc", {}, (("hipcc", "--version"),), "HIP version"),
    Program("rustc", {"made.rs": 'fn main() { println!("made"); }'}, (("rustc", "made.rs"), ("./made",)), "made"),
    Program("pytest, pools and asyncio", {"test_pools.py": POOLS},
            ((sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_pools.py"),), "3 passed"),
    Program("torch", {"made.py": TORCH}, ((sys.executable, "made.py"),), "total 312", modules=("torch",)),
    Program("Triton", {"made.py": TRITON}, ((sys.executable, "made.py"),), "True", modules=("triton",)),
    Program("liburing", {}, ((sys.executable, "-c", LIBURING),), "ring -1"),
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_works_under_the_filter(program: Program, tmp_path: Path):
    for word, *_ in program.commands:
        if "/" not in word and shutil.which(word) is None:
            pytest.skip(f"{word} is not installed")
    if missing := [module for module in program.modules if importlib.util.find_spec(module) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    for name, text in program.files.items():
        (tmp_path / name).write_text(text)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), **program.env}
    said, code = "", 0
    for command in program.commands:
        assert code == 0, said
        bound = [sys.executable, "-c", BIND, "profiler" if program.profiler else "plain", *command]
        done = subprocess.run(bound, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, code = done.stdout, done.returncode
        if missing := re.search(
            r"(libclang_rt\S+|omp\.h|liburing\.so\.2)\b.*(No such file|not found|cannot open)", said
        ):
            pytest.skip(f"{missing[1]} is not installed")
    assert program.says in said
    assert code == program.exits, said


def test_without_a_profiler_a_search_for_leaks_says_that_it_cannot(tmp_path: Path):
    """As told in docs/explanation/architecture.md, with the setting that leaves it out."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "made.c").write_text(MISTAKES)
    subprocess.run(["gcc", "-fsanitize=address", "made.c", "-o", "made"], cwd=tmp_path, check=True)
    bound = [sys.executable, "-c", BIND, "plain", "./made"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(bound, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "LeakSanitizer has encountered a fatal error" in done.stderr
    assert subprocess.run(bound, cwd=tmp_path, env={**env, **NO_LEAKS}).returncode == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program changes registers of x86_64")
def test_a_tracer_cannot_make_a_denied_call_of_an_allowed_one(tmp_path: Path):
    """The kernel filters after the tracer, since Linux 4.8."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "made.c").write_text(REWRITTEN)
    subprocess.run(["gcc", "made.c", "-o", "made"], cwd=tmp_path, check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    free = subprocess.run(["./made"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert free.startswith("keyctl ") and "-1" not in free, "without a filter it gets a key ring"
    bound = [sys.executable, "-c", BIND, "profiler", "./made"]
    assert subprocess.run(bound, cwd=tmp_path, env=env, capture_output=True, text=True).stdout == "keyctl -1\n"
