"""Helpers of `on_gpu.py`: folders to carry, an environment from them without a network, and what the machine is."""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTING = ("pytest>=9", "pytest-timeout", "pytest-xdist", "inline-snapshot", "hypothesis", "time-machine", "anyio")
THERE = ("numpy", "pillow", "torch")
"""A machine with torch has these, of versions that fit each other; ours would stand before them."""
GLIBC = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
"""Of manylinux tags: pip takes those that it is told, and no older ones by itself."""
MOST_BYTES = 64 << 20
"""Of what is carried."""
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
BWRAP_PLACES = "/usr/local/bin:/usr/bin:/bin"
"""Where the host side looks for it."""
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.sm,clocks.max.memory,power.limit,persistence_mode"


def prepare_folders(python: str, wheels: Path, deb: Path, case: Path) -> None:
    """Replace the folders of wheels and of bubblewrap, and print the size of everything that is carried.

    Raises:
        SystemExit: If pip or apt-get fails, or if it is too much to carry.
    """
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [each for each in about["project"]["dependencies"] if not each.startswith(THERE)]
    shutil.rmtree(wheels, ignore_errors=True)
    tags = [word for version in GLIBC for word in ("--platform", f"manylinux_{version}_x86_64")]
    tags += [word for old in ("2014", "2010", "1") for word in ("--platform", f"manylinux{old}_x86_64")]
    target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *tags]
    _run([sys.executable, "-m", "pip", "download", "-q", *target, "-d", str(wheels), *wanted, *TESTING])
    for each in wheels.iterdir():
        if each.name.lower().startswith(tuple(f"{name}-" for name in THERE)):
            each.unlink()
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT)])
    shutil.rmtree(deb, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "-q", "download", "bubblewrap"], folder)
        _run(["dpkg", "-x", *map(str, Path(folder).glob("*.deb")), str(deb)])
    sizes = {folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in
             (wheels, deb, case)}  # fmt: skip
    for folder, size in sizes.items():
        print(f"{folder}: {size / 2**20:.1f} MiB")
    if sum(sizes.values()) > MOST_BYTES:
        raise SystemExit(f"The folders are larger than {MOST_BYTES >> 20} MiB together. Take cases out of {case}.")


def _run(argv: "list[str]", folder: "str | None" = None) -> None:
    if subprocess.run(argv, cwd=folder, check=False).returncode:
        raise SystemExit(f"{' '.join(argv[:6])} … failed. Its words are above.")


def environment_of(wheels: Path, deb: Path, torch_python: str, data: Path) -> "dict[str, str]":
    """Install the wheels and bubblewrap where that was not done yet; return the environment of all steps.

    Raises:
        SystemExit: If there are no wheels, or pip refuses them.
    """
    site = _installed(wheels)
    path = os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep)
    if not shutil.which("nvcc") and Path("/usr/local/cuda/bin").is_dir():
        path.append("/usr/local/cuda/bin")
    packed, least = deb / "usr" / "bin" / "bwrap", {}
    if not shutil.which("bwrap", path=BWRAP_PLACES):
        if os.geteuid() == 0 and packed.exists():
            shutil.copy(packed, "/usr/bin/bwrap")
            Path("/usr/bin/bwrap").chmod(0o755)
        else:
            least = {"GPU_MCP_MIN_LEVEL": "landlock"}
    ours = [str(ROOT), str(ROOT / "toolsets"), str(site), os.environ.get("PYTHONPATH", "")]
    return {
        **MULTICAST_OFF, **least, **os.environ, "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(filter(None, ours)), "PYTHONUNBUFFERED": "1", "GPU_MCP_DATA_DIR": str(data),
        "GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON": torch_python, "TEST_TORCH_PYTHON": torch_python,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(data / "hypothesis"),
    }  # fmt: skip


def _installed(wheels: Path) -> Path:
    """Return the folder with all wheels, outside of the checkout; it is made once for each set of them."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"{wheels} has no wheels. Where there is a network, run: python3 benchmarks/on_gpu.py prepare")
    known = hashlib.sha256("\n".join([sys.version, *(file.name for file in files)]).encode()).hexdigest()[:16]
    site = Path(tempfile.gettempdir()) / f"gpu-mcp-site-{known}"
    if not site.exists():
        made = Path(tempfile.mkdtemp(prefix="gpu-mcp-site-"))
        quiet = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "pip", "install", *quiet, "--target", str(made), *map(str, files)])
        made.chmod(0o755)  # jobs under their own uid read it
        made.rename(site)
    return site


def describe_machine(given: argparse.Namespace, environment: "dict[str, str]") -> "dict[str, Any]":
    """Return the card, its driver and clocks, the compilers, the packages, the commit."""

    def said(*command: str) -> str:
        """Return what a command says; empty where there is none."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip()

    versions = "import torch, triton, numpy; print(torch.__version__, triton.__version__, numpy.__version__)"
    changed = said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return {
        "time": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": said("git", "-C", str(ROOT), "rev-parse", "HEAD") or given.commit or "unknown",
        "changed_files": changed.splitlines(),
        "gpus": [dict(zip(QUERY.split(","), line.split(", "), strict=False))
                 for line in said("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader").splitlines()],
        "links": said("nvidia-smi", "topo", "-m"),
        "nvcc": (said("nvcc", "--version").splitlines() or [""])[-1],
        "tools": {name: shutil.which(name, path=environment["PATH"]) or "" for name in
                  ("bwrap", "ncu", "nsys", "compute-sanitizer", "cuda-gdb", "g++", "ninja", "mpirun", "ptxas")},
        "bwrap": said("bwrap", "--version"),
        "least_level": environment.get("GPU_MCP_MIN_LEVEL", ""),
        "python": platform.python_version(),
        "torch, triton, numpy": said(given.torch_python, "-c", versions),
        "packages": {each.name: each.version for each in
                     importlib.metadata.distributions(path=[environment["PYTHONPATH"].split(os.pathsep)[2]])},
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "user": os.geteuid(),
        "command": sys.argv,
    }  # fmt: skip
