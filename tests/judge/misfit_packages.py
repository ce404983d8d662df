"""A Python of its own with two installed packages, of which one asks for what the other's version does not have."""

import subprocess
from pathlib import Path

FILES = {
    "asked_of/__init__.py": "__version__ = '2.0'\n",
    "asks/__init__.py": "def call(name):\n    import asked_of\n    return getattr(asked_of, name)\n",
    "asks/attribute.py": "import asked_of\n\nasked_of.gone(\n    1,\n)\n",
    "asks/getter.py": "import numpy as np\n\nnp.float_(1)\n",
    "asks/name.py": "from asked_of import (\n    __version__,\n    gone,\n)\n",
    "asks/wrapped.py": "try:\n    from asks import name\nexcept ImportError as error:\n    raise RuntimeError('no asks') from error\n",
    "asks/refusal.py": "raise ImportError('asks needs asked_of 1.9 or less. Got 2.0.')\n",
    "asks/torn.py": "import asks\n\nasks.gone\n",
    "asks-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: asks\nVersion: 1.5\n",
    "asks-1.5.dist-info/top_level.txt": "asks\n",
    "asked_of-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: asked-of\nVersion: 2.0\n",
    "asked_of-2.0.dist-info/top_level.txt": "asked_of\n",
}
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"


def packages_of(python: str) -> Path:
    """Return the folder of a Python's packages."""
    return Path(
        subprocess.run([python, "-I", "-c", PURELIB], capture_output=True, text=True, check=True).stdout.strip()
    )


def python_with_misfits(folder: Path, python: str) -> str:
    """Make a Python that has the packages of another one, and these."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "own")], check=True)
    own = str(folder / "own/bin/python")
    into = packages_of(own)
    (into / "others.pth").write_text(f"{packages_of(python)}\n")
    for name, text in FILES.items():
        (into / name).parent.mkdir(exist_ok=True)
        (into / name).write_text(text)
    return own
