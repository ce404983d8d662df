"""Asks an interpreter where it lies and what is installed for it, once for the judge and for compilers' packages."""

import json
import os
from typing import Any, Dict, Optional

from .version_cache import VersionCache

ABOUT = """
import json, os, re, sys, sysconfig
installed = []
for folder in sys.path:
    try:
        installed += sorted(os.listdir(folder))
    except OSError:
        pass  # it is not there, an archive, or closed to us
def version(name):
    # By the name of its folder: to import importlib.metadata would take twice as long as all else here.
    named = name.replace("-", "[-_.]") + r"(?:-([^-]+)(?:-py[\\d.]+)?)?\\.(?:dist|egg)-info$"
    for match in filter(None, (re.match(named, entry, re.IGNORECASE) for entry in installed)):
        return match.group(1) or unnamed_version(name)
def unnamed_version(name):
    # that of a package that is used where it is built
    try:
        from importlib import metadata
        return metadata.version(name)
    except Exception:
        return None
def uncompiled():
    from importlib.util import find_spec
    found = {}
    for name in ("numpy", "torch", "triton"):
        try:
            spec = find_spec(name)
            if spec and spec.origin and spec.cached and not os.path.exists(spec.cached):
                found[name] = [os.path.dirname(spec.origin), "%s %d" % (version(name), os.stat(spec.origin).st_mtime)]
        except (ImportError, ValueError, OSError):
            pass  # a package that cannot be found, or lies in an archive, has no folder to compile
    return found
def torch_archs():
    try:
        from importlib.util import find_spec
        place = os.path.dirname(find_spec("torch").origin)
        with open(os.path.join(place, "utils", "cpp_extension.py"), encoding="utf-8") as text:
            listed = re.search(r"supported_arches\\s*=\\s*\\[(.*?)\\]", text.read(), re.DOTALL)
        return re.findall(r"\\b\\d+\\.\\d+[a-z]?\\b", listed.group(1))
    except Exception:
        return []
real = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable,
    "roots": [sys.prefix, sys.base_prefix, real],
    "site": sysconfig.get_paths()["purelib"], "include": sysconfig.get_paths()["include"],
    "numpy": version("numpy"), "torch": version("torch"), "torch_archs": torch_archs(), "triton": version("triton"),
    "sycl": version("intel-sycl-rt"), "uncompiled": uncompiled()}))
"""


def ask_python(answers: VersionCache, path: str) -> Optional[Dict[str, Any]]:
    """Return what an interpreter says of itself; nothing if there is none of that path, or it does not start.

    Its `roots` are the folders that a sandbox must show for it; every sandbox shows /usr.
    """
    try:
        # -I: neither the user's packages nor PYTHON variables change what jobs will find.
        about: Dict[str, Any] = json.loads(answers.uncached_output([path, "-I", "-c", ABOUT]))
    except ValueError:
        return None
    roots = {*about["roots"], os.path.dirname(os.path.dirname(path))}
    about["roots"] = sorted(r for r in roots if r not in ("/", "/usr") and not r.startswith("/usr/"))
    return about


def can_jobs_reach(path: str) -> bool:
    """Return whether jobs can start a program: those of a root hostd have uids of their own."""
    if os.geteuid():
        return True
    real = os.path.realpath(path)
    folders = [path, real]
    while folders:
        folder = os.path.dirname(folders.pop())
        try:
            if not os.stat(folder).st_mode & 0o001:
                return False
        except OSError:
            return False
        if folder != "/":
            folders.append(folder)
    return True
