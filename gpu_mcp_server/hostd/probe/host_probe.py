"""Probes a host: processor, compilers, interpreters for the judge."""

import fcntl
import glob
import os
import platform
import re
import shutil
import socket
import struct
from typing import Any, Dict, List, Optional, Tuple

from ..jobs.host_resources import Host
from . import setup_lines, toolchain_probe
from .bytecode import bytecode_of
from .python_probe import ask_python, can_jobs_reach
from .version_cache import VersionCache

SIOCGIFADDR = 0x8915
INNER = ("docker", "br-", "virbr", "veth", "cni", "podman", "lxc")
COMPILERS = ("gcc", "g++", "clang", "clang++")


def addresses() -> List[str]:
    """Return this machine's IPv4 addresses but loopback's, those of bridges for containers last.

    Source: netdevice(7), SIOCGIFADDR.
    """
    found: List[str] = []
    inner: List[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                said = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(said[20:24])
            if not address.startswith("127."):
                (inner if name.startswith(INNER) else found).append(address)
    return found + inner


def describe_host(host: Host, wishes: Dict[str, Any]) -> Dict[str, Any]:
    """Describe the host besides its GPUs; starts compilers and interpreters and takes a while.

    Args:
        host: The host.
        wishes: From the settings: `judge_pythons` (interpreters for the judge, best first),
            `judge_reasons` (what each of them is), `judge_named` (whether the settings name the first),
            `cuda` (toolkit root), `include_paths` (folders of headers),
            `setup` (lines of shell, in whose environment all is looked for).
    """
    lines = [str(line) for line in wishes.get("setup", [])]
    setup = setup_lines.run_setup(lines) if lines else {}
    os.environ.update(setup.get("variables", {}))  # of this process, which was forked to look around
    os.environ["PATH"] = os.pathsep.join([*setup.get("path", []), os.environ.get("PATH", os.defpath)])
    answers = VersionCache(os.path.join(os.path.expanduser("~"), ".cache", "gpu-mcp-server", "answers.json"))
    nvcc = _nvcc(answers, wishes.get("cuda"), [str(p) for p in wishes.get("judge_pythons", [])])
    about = {
        "hostname": platform.node(),
        "system": platform.system(),
        "addresses": addresses(),
        "setup": setup,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "level": host.level,
        "weaker_because": host.weaker_because,
        "hint": host.hint,
        "signals_scoped": host.signals_scoped,
        "state": host.state,
        "noexec": bool(os.statvfs(host.state).f_flag & os.ST_NOEXEC),
        "cgroup": host.hierarchy.kind if host.hierarchy else None,
        "compilers": _compilers(answers, setup.get("path", [])),
        "nvcc": nvcc,
        "cuda_without_nvcc": _without_nvcc(wishes.get("cuda"), nvcc),
        "toolchains": toolchain_probe.probe_toolchains(dict(wishes, shown=setup.get("roots", [])), nvcc, answers),
        "judge": _judge_python(host, answers, wishes),
    }
    answers.keep()
    return about


def _compilers(answers: VersionCache, first: List[str]) -> Dict[str, Dict[str, str]]:
    """Find the system's compilers, or those in the folders that come first."""
    folders = os.pathsep.join([*first, "/usr/local/bin:/usr/bin:/bin"])
    found: Dict[str, Dict[str, str]] = {}
    for name in COMPILERS:
        names = [name] + ["%s-%d" % (name, v) for v in toolchain_probe.CLANG_VERSIONS if name.startswith("clang")]
        path = next(filter(None, (shutil.which(n, path=folders) for n in names)), None)
        if path:
            found[name] = {"path": path, "version": _version(answers, path)}
    return found


def _version(answers: VersionCache, path: str) -> str:
    line = answers.successful_output([path, "--version"]).partition("\n")[0]
    return toolchain_probe.version_in(line.rpartition(")")[2]) or toolchain_probe.version_in(line) or line


def _nvcc(answers: VersionCache, root: Any, pythons: List[str]) -> Optional[Dict[str, Any]]:
    """Find nvcc: settings, CUDA_HOME, PATH, /usr/local/cuda*, then the wheels of the judge's interpreters."""
    candidates = [os.path.join(str(r), "bin", "nvcc") for r in (root, os.environ.get("CUDA_HOME")) if r]
    on_path = shutil.which("nvcc")
    candidates += [on_path] if on_path else []
    candidates += sorted(glob.glob("/usr/local/cuda*/bin/nvcc"), reverse=True)
    for python in pythons:
        prefix = os.path.dirname(os.path.dirname(python))
        candidates += sorted(glob.glob(prefix + "/lib/python3*/site-packages/nvidia/cu[0-9]*/bin/nvcc"), reverse=True)
    for path in candidates:
        text = answers.successful_output([path, "--version"])
        match = re.search(r"release (\d+\.\d+), V(\S+)", text)
        if match:
            listed = answers.successful_output([path, "--list-gpu-code"]).split()
            suffixed = re.findall(r"'(sm_\d{2,3}[a-z])'", answers.successful_output([path, "--help"]))
            archs = list(dict.fromkeys([*listed, *suffixed]))
            real = _toolkit_root(answers, path)
            return {
                "path": path,
                "version": match.group(2),
                "root": real,
                "archs": archs,
                "build": text.strip().rpartition("\n")[2],
            }
    return None


def _without_nvcc(root: Any, found: Optional[Dict[str, Any]]) -> str:
    """Return the folder that the settings name as the toolkit's, if the compiler is not from there."""
    wanted = os.path.join(str(root), "bin", "nvcc") if root else ""
    return "" if not wanted or (found and found["path"] == wanted) else str(root)


def _toolkit_root(answers: VersionCache, nvcc: str) -> str:
    """Return the toolkit's folder; nvcc on the PATH may be a link or a small script."""
    line = next(
        (
            x
            for x in answers.successful_output([nvcc, "--dryrun", "-x", "cu", "/dev/null"]).splitlines()
            if " TOP=" in x
        ),
        "",
    )
    if line:
        return os.path.realpath(line.partition("TOP=")[2].strip())
    return os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))


def _judge_python(host: Host, answers: VersionCache, wishes: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the judge's interpreter, and where the bytecode is that its packages lack."""
    about = _choose_python(answers, wishes)
    if about is None:
        return None
    lacking: Dict[str, Any] = about["uncompiled"]
    folder = bytecode_of(host.state, host.level, about["path"], lacking)
    return dict(about, uncompiled=sorted(lacking), bytecode=folder)


def _choose_python(answers: VersionCache, wishes: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Choose an interpreter, and say why, and what must be shown inside the sandbox for it.

    One that the settings name is taken if it has NumPy. Else it is the first with torch, or the first with NumPy, and
    the reason says why the named one is not.
    """
    reasons: Dict[str, str] = dict(wishes.get("judge_reasons", {}))
    paths = [str(p) for p in wishes.get("judge_pythons", [])]
    for path, reason in _found_pythons():
        reasons.setdefault(path, reason)
    found: List[Dict[str, Any]] = []
    ignored = ""
    for path in dict.fromkeys([*paths, *reasons]):
        about = _about_python(answers, path, path in paths)
        if about:
            found.append(dict(about, why=reasons.get(path, "")))
        if wishes.get("judge_named") and path == paths[0]:
            if about and about["numpy"]:
                return found[0]
            ignored = "instead of judge_python %s, which %s; " % (
                path,
                "has no NumPy" if about else _why_not_started(path),
            )
    usable = [about for about in found if about["numpy"] and can_jobs_reach(about["path"])]
    usable = usable or [about for about in found if about["numpy"]]
    best = next((about for about in usable if about["torch"]), usable[0] if usable else None)
    if best is None:
        return found[0] if found else None
    has = "with torch" if best["torch"] else "with NumPy; none has torch"
    best["why"] = "%s%s, the first of %d %s" % (ignored, best["why"], len(found), has)
    return best


def _why_not_started(path: str) -> str:
    """Return why this account starts no program of that path, as far as can be told."""
    if os.access(path, os.X_OK):
        return "does not start"
    return "this account may not start" if os.path.lexists(path) else "does not exist"


def _found_pythons() -> List[Tuple[str, str]]:
    """Return interpreters that the host's own environment names, such as setup lines make it."""
    found: List[Tuple[str, str]] = []
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = os.path.join(os.environ.get(name, ""), "bin", "python")
        if os.environ.get(name) and os.access(python, os.X_OK):
            found.append((python, "the active environment, %s" % name))
    on_path = shutil.which("python3")
    return found + ([(on_path, "python3 on PATH")] if on_path else []) + [("/usr/bin/python3", "the system's Python")]


def _about_python(answers: VersionCache, path: str, named: bool) -> Optional[Dict[str, Any]]:
    told = ask_python(answers, path)
    if not told:
        return None
    names = ("version", "numpy", "torch", "torch_archs", "triton", "roots", "uncompiled")
    about = {name: told[name] for name in names}
    # python3 on PATH may be a script of pyenv's, which no sandbox shows.
    about["path"] = path if named else told["executable"] or path
    return about


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as text:
            for line in text:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
