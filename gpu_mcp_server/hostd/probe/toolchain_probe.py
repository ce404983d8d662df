"""Finds build tools besides gcc and nvcc: HIP, NVRTC, Triton, disassemblers, build systems, converters.

Each is looked for where its own documentation puts it: named in the settings, in the environment, on the PATH, below
/usr/local/cuda* or /opt/rocm*, then in the site-packages of the interpreters that are known (NVIDIA's wheels lie in
`nvidia/cu*`, Triton brings its own ptxas, cuobjdump and nvdisasm).
"""

import glob
import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import header_trees, nvidia_libraries
from .python_probe import ask_python
from .version_cache import VersionCache

CLANG_VERSIONS = range(30, 13, -1)
SYCL_CLANG = "clang-sycl"
"""Our name for a clang++ that compiles SYCL itself: Intel's open compiler (DPC++) has no other program."""
SYCL_CLANG_PLACES = ("/opt/dpcpp*/bin/clang++", "/opt/intel/oneapi/compiler/*/bin/compiler/clang++")
_SYCL_SOURCE = "#if defined(SYCL_LANGUAGE_VERSION) && __has_include(<sycl/sycl.hpp>)\nwhole_sycl\n#endif\n"
OLDEST_HIP_CLANG = 17
"""clang before it lacks gfx942 and takes the headers of hipcc's own version alone."""
TOOLS = (
    ("cuobjdump", ()),
    ("nvdisasm", ()),
    ("llvm-objdump", ()),
    ("cmake", ()),
    ("ctest", ()),
    ("ninja", ()),
    ("make", ()),
    ("hipify-clang", ()),
    ("hipify-perl", ()),
    ("icpx", ("/opt/intel/oneapi/compiler/*/bin/icpx",)),
    ("acpp", ("/opt/adaptivecpp/bin/acpp", "/usr/local/bin/acpp")),
    ("dpct", ("/opt/intel/oneapi/dpcpp-ct/*/bin/dpct",)),
    ("ncu", ("/opt/nvidia/nsight-compute/*/ncu",)),
    ("nsys", ("/opt/nvidia/nsight-systems/*/bin/nsys",)),
    ("compute-sanitizer", ("/usr/local/cuda*/compute-sanitizer/compute-sanitizer",)),
    ("cuda-gdb", ()),
    ("rocprofv3", ()),
    ("rocprof-compute", ()),
    ("mpirun", ()),
    ("c2s", ("/opt/intel/oneapi/dpcpp-ct/*/bin/c2s",)),
)

_ABOUT_NVRTC = """
import ctypes, json, sys
for builtins in sys.argv[2:]:
    ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
lib = ctypes.CDLL(sys.argv[1])
major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
lib.nvrtcGetNumSupportedArchs(ctypes.byref(count))
numbers = (ctypes.c_int * count.value)()
lib.nvrtcGetSupportedArchs(numbers)
archs = ["sm_%d" % n for n in numbers]
def takes(arch):
    program, options = ctypes.c_void_p(), (ctypes.c_char_p * 2)(b"-arch=" + arch.encode(), b"-minimal")
    lib.nvrtcCreateProgram(ctypes.byref(program), b"", b"k.cu", 0, None, None)
    return lib.nvrtcCompileProgram(program, 2, options) == 0
archs += [a for a in ["sm_%da" % n for n in numbers if n >= 90] if takes(a)]
print(json.dumps({"version": "%d.%d" % (major.value, minor.value), "archs": archs}))
"""
_ABOUT_HIPRTC = """
import ctypes, json, sys
lib = ctypes.CDLL(sys.argv[1])
major, minor = ctypes.c_int(), ctypes.c_int()
lib.hiprtcVersion(ctypes.byref(major), ctypes.byref(minor))
print(json.dumps({"version": "%d.%d" % (major.value, minor.value)}))
"""


def probe_toolchains(wishes: Dict[str, Any], nvcc: Optional[Dict[str, Any]], answers: VersionCache) -> Dict[str, Any]:
    """Describe them all.

    Args:
        wishes: As for the probe: `judge_pythons` (interpreters, best first), `cuda` (toolkit root);
            `include_paths` (folders of headers); `shown` (folders that every sandbox is shown).
        nvcc: What the probe found of the CUDA toolkit.
        answers: Asks the compilers.
    """
    with ThreadPoolExecutor(4) as pool:
        candidates = dict.fromkeys([*map(str, wishes.get("judge_pythons", [])), "/usr/bin/python3"])
        pythons = [p for p in pool.map(partial(_python, answers), candidates) if p]
        nvrtc = pool.submit(_nvrtc, answers, wishes, nvcc, pythons)
        hip = pool.submit(_hip, answers)
        tools = pool.submit(_tools, answers, wishes, nvcc, pythons)
        hiprtc = pool.submit(_hiprtc, answers)
        return {
            "hip": hip.result(),
            "hiprtc": hiprtc.result(),
            "nvrtc": nvrtc.result(),
            "tools": tools.result(),
            "pythons": pythons,
            "headers": header_trees.probe_header_trees([str(p) for p in wishes.get("include_paths", [])], pythons),
            "libraries": nvidia_libraries.probe_libraries(_cuda_roots(wishes, nvcc), pythons, wishes.get("shown", [])),
        }


def _on_path(name: str) -> Optional[str]:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/bin:/usr/bin:/bin")))


def _python(answers: VersionCache, path: str) -> Optional[Dict[str, Any]]:
    told = ask_python(answers, path)
    if not told:
        return None
    about = {name: told[name] for name in ("version", "site", "triton", "torch", "sycl", "roots")}
    about["path"] = path
    about["torch_build"] = _torch_build(about["site"], told["include"]) if about["torch"] else None
    about["archs"] = _triton_archs(answers, about["site"]) if about["triton"] else []
    return about


def _torch_build(site: str, include: str) -> Optional[Dict[str, Any]]:
    """Return what an extension of this torch is compiled with, by its own builder's text and its libraries."""
    torch = os.path.join(site, "torch")
    try:
        with open(os.path.join(torch, "utils", "cpp_extension.py"), encoding="utf-8") as file:
            standards = re.findall(r"-std=(c\+\+\d\d)", file.read(1 << 20))
        with open(os.path.join(torch, "lib", "libc10.so"), "rb") as file:
            cxx11 = b"NSt7__cxx1112basic_string" in file.read(64 << 20)
    except OSError:
        return None
    if not os.path.exists(os.path.join(include, "Python.h")):
        return None
    wanted = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python")
    there = [name for name in wanted if os.path.exists("%s/lib/lib%s.so" % (torch, name))]
    return {"include": include, "standard": max(standards, default="c++17"), "cxx11": cxx11, "libraries": there}


def _triton_archs(answers: VersionCache, site: str) -> List[str]:
    """Return what Triton's own ptxas knows, and whether there is a backend for AMD."""
    known: List[str] = []
    for ptxas in glob.glob(site + "/triton/**/bin/ptxas*", recursive=True):
        known += re.findall(r"'(sm_\d{2,3})'", answers.output_of([ptxas, "--help"]))
    amd = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200"] if os.path.isdir(site + "/triton/backends/amd") else []
    return sorted(set(known), key=lambda a: (len(a), a)) + amd


def _cuda_roots(wishes: Dict[str, Any], nvcc: Optional[Dict[str, Any]]) -> List[str]:
    named = [wishes.get("cuda"), os.environ.get("CUDA_HOME"), nvcc["root"] if nvcc else None]
    roots = [os.path.realpath(str(r)) for r in named if r]
    roots += sorted(map(os.path.realpath, glob.glob("/usr/local/cuda*")), reverse=True)
    return [r for r in dict.fromkeys(roots) if os.path.isdir(r)]


def _nvrtc(
    answers: VersionCache, wishes: Dict[str, Any], nvcc: Optional[Dict[str, Any]], pythons: List[Dict[str, Any]]
) -> Optional[Dict[str, Any]]:
    roots = _cuda_roots(wishes, nvcc)
    folders: List[Tuple[str, List[str]]] = [
        (folder, [root])
        for root in roots
        for folder in (root + "/lib64", root + "/lib", *glob.glob(root + "/targets/*/lib"))
    ]
    for python in pythons:
        for pattern in ("/nvidia/cu[0-9]*/lib", "/nvidia/cuda_nvrtc/lib"):
            folders += [(f, python["roots"]) for f in sorted(glob.glob(python["site"] + pattern), reverse=True)]
    for folder, shown in folders:
        # The shortest name is the one that programs are linked to; longer ones are what it leads to.
        for library in sorted(glob.glob(folder + "/libnvrtc.so.[0-9]*"), key=len):
            builtins = sorted(glob.glob(folder + "/libnvrtc-builtins.so.[0-9]*"), key=len)[:1]
            try:
                about: Dict[str, Any] = json.loads(
                    answers.output_of([sys.executable, "-I", "-c", _ABOUT_NVRTC, library, *builtins])
                )
            except ValueError:
                continue
            headers = [f for r in roots for f in (r + "/include", r + "/include/cccl") if os.path.isdir(f)]
            headers += [h for h in (os.path.dirname(folder) + "/include",) if h not in headers and os.path.isdir(h)]
            about.update(path=library, builtins=builtins, include=headers, roots=sorted({*shown, *roots[:1]}))
            return about
    return None


def _rocm_roots() -> List[str]:
    named = [r for r in (os.environ.get("ROCM_PATH"), os.environ.get("HIP_PATH")) if r]
    return named + sorted(map(os.path.realpath, glob.glob("/opt/rocm*")), reverse=True)


def _hiprtc(answers: VersionCache) -> Optional[Dict[str, Any]]:
    """Find the newest library with HIPRTC in it, of ROCm's before the distribution's."""
    rocm = _rocm_roots()
    names = ("/libhiprtc.so.[0-9]*", "/libamdhip64.so.[0-9]*")
    for folder in [r + "/lib" for r in rocm] + ["/usr/lib/*"]:
        for path in sorted((p for n in names for p in glob.glob(folder + n)), key=len):
            try:
                about: Dict[str, Any] = json.loads(answers.output_of([sys.executable, "-I", "-c", _ABOUT_HIPRTC, path]))
            except ValueError:
                continue
            root = os.path.dirname(os.path.dirname(path)) if folder[: -len("/lib")] in rocm else ""
            built = _first_folder([root + "/amdgcn/bitcode", os.path.dirname(path) + "/amdgcn/bitcode"])
            archs = sorted(_built_archs(built))
            if archs:
                about.update(path=path, archs=archs, roots=[root] if root.startswith("/opt/") else [])
                return about
    return None


def _built_archs(libraries: str) -> List[str]:
    """Return the processors that a folder of device libraries is built for."""
    files = glob.glob(libraries + "/oclc_isa_version_*.bc")
    return ["gfx" + os.path.basename(f)[len("oclc_isa_version_") : -len(".bc")] for f in files]


def _hip(answers: VersionCache) -> List[Dict[str, Any]]:
    """Find hipcc and the newest clang that can compile HIP, the one that AMD's users expect first."""
    rocm = _rocm_roots()
    libraries = _first_folder(
        [r + "/amdgcn/bitcode" for r in rocm] + ["/usr/lib/*/amdgcn/bitcode", "/usr/amdgcn/bitcode"]
    )
    compilers: List[Dict[str, Any]] = []
    hipcc = next(
        (p for p in [*(r + "/bin/hipcc" for r in rocm), _on_path("hipcc")] if p and os.path.exists(p)),
        None,
    )
    if hipcc:
        compilers += _hipcc(answers, hipcc, libraries)
    headers = _first_folder([r + "/include/hip" for r in rocm] + ["/usr/include/hip"])
    runtime = _first_folder([r + "/lib" for r in rocm] + ["/usr/lib/*/libamdhip64.so"])
    for version in CLANG_VERSIONS if headers and libraries and runtime else ():
        path = _on_path("clang++-%d" % version)
        bundler = "/usr/lib/llvm-%d/bin/clang-offload-bundler" % version
        if path and version >= OLDEST_HIP_CLANG and os.path.exists(bundler):
            where = os.path.dirname(runtime) if runtime.endswith(".so") else runtime
            compilers.append(
                {
                    "name": os.path.basename(path),
                    "path": path,
                    "version": _version(answers, path),
                    "archs": _amd_processors(answers, path),
                    "device_libs": libraries,
                    "libraries": where,
                    "roots": [],
                }
            )
            break
    return compilers


def _hipcc(answers: VersionCache, hipcc: str, libraries: str) -> List[Dict[str, Any]]:
    said = answers.output_of([hipcc, "--version"], {"HIP_PLATFORM": "amd"})
    version = re.search(r"HIP version: (\S+)", said)
    installed = re.search(r"InstalledDir: (\S+)", said)
    number = re.search(r"clang version (\d+)", said)
    if not (version and installed and number):
        return []
    names = [installed[1] + "/clang++", installed[1] + "/clang++-" + number[1]]
    clang = next((n for n in names if os.path.exists(n)), "")
    processors = _amd_processors(answers, clang) if clang else []
    built = _built_archs(libraries)
    root = os.path.dirname(os.path.dirname(os.path.realpath(hipcc)))
    return [
        {
            "name": "hipcc",
            "path": hipcc,
            "version": version[1],
            "archs": [a for a in processors if a in built] if built else processors,
            "device_libs": libraries,
            "libraries": "",
            "roots": [root] if root.startswith("/opt/") else [],
        }
    ]


def _amd_processors(answers: VersionCache, clang: str) -> List[str]:
    """Return what clang lists when it is asked for a processor that does not exist."""
    target = ["--target=amdgcn-amd-amdhsa", "-nogpulib", "-Xclang", "-target-cpu", "-Xclang", "none"]
    said = answers.output_of([clang, *target, "-x", "c", "-fsyntax-only", "/dev/null"])
    return re.findall(r"\bgfx[0-9a-f]+(?=,|\s|$)", said.partition("valid target CPU values are:")[2])


def _first_folder(patterns: Sequence[str]) -> str:
    return next((f for pattern in patterns for f in sorted(glob.glob(pattern))), "")


def version_in(text: str) -> str:
    """Return the first version number in what a program says of itself, empty when there is none."""
    match = re.search(r"(?:version|\bV)\s?(\d+(?:\.\d+)+)", text) or re.search(r"(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""


def _version(answers: VersionCache, path: str) -> str:
    return version_in(answers.output_of([path, "--version"]))


def _is_home(folder: str) -> bool:
    """Say whether a folder is somebody's home: hostd's own, or one of those that lie together."""
    return folder == os.path.expanduser("~") or os.path.dirname(folder) in ("/home", "/Users")


def _roots_around(path: str) -> List[str]:
    """Return the folders that a program needs shown, if it lies outside of /usr, as one named or on the PATH may.

    That is the prefix of its `bin`, for its libraries, but never a home, what is hidden in one, or a folder like /opt.
    """
    found: List[str] = []
    for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        folder = os.path.dirname(place)
        prefix = os.path.dirname(folder)
        whole = os.path.basename(folder) == "bin" and not _is_home(prefix) and prefix.count("/") > 1
        root = prefix if whole and not os.path.basename(prefix).startswith(".") else folder
        if root != "/" and not _is_home(root) and not re.match(r"/(?:usr|bin|sbin|lib|lib64)(?:/|$)", root):
            found.append(root)
    return found


def _tools(
    answers: VersionCache, wishes: Dict[str, Any], nvcc: Optional[Dict[str, Any]], pythons: List[Dict[str, Any]]
) -> Dict[str, Dict[str, Any]]:
    tools: Dict[str, Dict[str, Any]] = {}
    folders = [(r + "/bin", [r]) for r in _cuda_roots(wishes, nvcc)]
    for python in pythons:
        for pattern in ("/nvidia/cu[0-9]*/bin", "/triton/backends/nvidia/bin"):
            folders += [(f, python["roots"]) for f in sorted(glob.glob(python["site"] + pattern), reverse=True)]
    for name, patterns in TOOLS:
        places: List[Tuple[Optional[str], List[str]]] = [(os.environ.get(name.upper().replace("-", "_")), [])]
        if name == "llvm-objdump":  # the newest knows most processors; Debian's plain name is an old one
            places += [(_on_path("%s-%d" % (name, v)), []) for v in CLANG_VERSIONS]
        places += [(_on_path(name), [])]
        places += [
            (p, [os.path.dirname(os.path.dirname(p))])
            for pattern in patterns
            for p in sorted(glob.glob(pattern), reverse=True)
        ]
        places += [(r + "/bin/" + name, [r]) for r in sorted(glob.glob("/opt/rocm*"), reverse=True)]
        places += [(f + "/" + name, roots) for f, roots in folders]
        for path, roots in places:
            if path and os.access(path, os.X_OK):
                tools[name] = {"path": path, "version": _version(answers, path), "roots": roots or _roots_around(path)}
                break
    sycl = _sycl_clang(answers)
    return dict(tools, **{SYCL_CLANG: sycl}) if sycl else tools


def _sycl_clang(answers: VersionCache) -> Optional[Dict[str, Any]]:
    """Find a clang++ with SYCL's headers and library; a distribution's takes -fsycl as well and has neither."""
    named = [os.environ.get("CLANG_SYCL"), *(p for g in SYCL_CLANG_PLACES for p in sorted(glob.glob(g), reverse=True))]
    named += [
        _on_path("clang++"),
        *(_on_path("clang++-%d" % v) for v in CLANG_VERSIONS),
    ]
    for path in dict.fromkeys(p for p in named if p and os.access(p, os.X_OK)):
        if "-lsycl" not in answers.output_of([path, "-fsycl", "-###", "-x", "c++", "/dev/null"]):
            continue
        if "whole_sycl" in answers.output_of([path, "-fsycl", "-E", "-P", "-x", "c++", "-"], stdin=_SYCL_SOURCE):
            root = os.path.dirname(os.path.dirname(os.path.realpath(path)))
            return {"path": path, "version": _version(answers, path), "roots": [] if root == "/usr" else [root]}
    return None
