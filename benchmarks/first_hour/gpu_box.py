"""The first hour of an engineer whose GPU box is reached by SSH: hosts add, a wrong key, packages, a verdict, jobs.

    python benchmarks/first_hour/gpu_box.py [--packages torch]    (as root)

"The box" is an account of its own behind a real sshd on loopback; the laptop is another account. Both are deleted at
the end. Each step runs in a terminal of 80 columns; a row says what came and whether it left a riddle.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import asyncssh

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "toolsets")]

from benchmarks.first_hour.accounts import accounts, give  # noqa: E402
from benchmarks.first_hour.terminal import HEAD, Person, install_command  # noqa: E402
from tests.backends.sshd import Sshd  # noqa: E402

ENGINEER, BOX = "fh-engineer", "fh-box"
MATRIX = {"dtype": "float32", "shape": ["rows", "cols"]}
CONFIG = """Host gpu-box
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {key}
"""


def move_in(home: Path, box: Sshd) -> str:
    """Lay what an engineer has: the command, examples, a key that the box knows and one that it does not."""
    path = install_command(home, ROOT, sys.executable)
    shutil.copytree(ROOT / "examples" / "softmax", home / "softmax")
    keys = home / ".ssh"
    keys.mkdir(mode=0o700)
    shutil.copy(box.user_key, keys / "right")
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(keys / "wrong")  # pyright: ignore[reportUnknownMemberType]
    (keys / "config").write_text(CONFIG.format(port=box.port, user=BOX, key=keys / "wrong"))
    for file in keys.iterdir():
        file.chmod(0o600)
    give(home, ENGINEER)
    return path


def first_hour(person: Person, keys: Path, packages: str) -> None:
    """Play the hour."""
    seen = person.do("gpu-mcp-server hosts add box gpu-box", code=1, says="is not accepted yet")
    accept = re.findall(r"`(gpu-mcp-server hosts check box --accept-key \S+)`", seen.text)
    person.do(accept[0] if accept else "false", code=1, says="ssh-copy-id puts your key there")
    config = keys / "config"
    config.write_text(config.read_text().replace("wrong", "right"))
    person.do("gpu-mcp-server hosts check box", says="hosts set box --with")
    person.do(
        f"gpu-mcp-server hosts set box --with {packages}", says=f"installed .*{packages.split(',')[0].split('=')[0]}"
    )
    person.do("gpu-mcp-server hosts check box", says="(?i)judge")
    person.do("gpu-mcp-server doctor", says="box")
    compile_it = {"path": "softmax/naive.c", "host": "box"}
    person.do(f"gpu-mcp-server call compile_kernel --args '{json.dumps(compile_it)}'", says="(?i)ok|compiled")
    problem = {
        "name": "softmax", "reference_path": "softmax/reference.py", "shapes": [{"rows": 64, "cols": 256}],
        "inputs": [{"name": "x", **MATRIX}], "outputs": [{"name": "y", **MATRIX}], "rtol": 1e-4, "atol": 1e-6,
    }  # fmt: skip
    seen = person.do(f"gpu-mcp-server call register_problem --args '{json.dumps(problem)}'", says="p-[0-9a-f]+")
    name = next((word.strip("`.,;:") for word in seen.text.split() if word.startswith("p-")), "p-0")
    judge_it = {"problem_id": name, "path": "softmax/naive.c", "host": "box"}
    person.do(f"gpu-mcp-server call evaluate_kernel --args '{json.dumps(judge_it)}'", says="correct")
    person.do("gpu-mcp-server run --push softmax --host box -- ls", says=r"naive\.c")
    seen = person.do("gpu-mcp-server run --detach --host box -- sh -c 'echo begun; sleep 600'", says="j-")
    job = next((word for word in seen.text.split() if word.startswith("j-")), "j-0")
    person.do("gpu-mcp-server jobs", says="running")
    person.do(f"gpu-mcp-server logs {job}", says="begun")
    person.do(f"gpu-mcp-server cancel {job}", says="(?i)cancel|ended")
    person.do(f"gpu-mcp-server logs {job}", says="begun")
    person.do("gpu-mcp-server history", says="correct")


def main() -> int:
    """Play the hour, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default="torch")
    args = parser.parse_args()
    with accounts(ENGINEER, BOX) as (home, _), tempfile.TemporaryDirectory(prefix="box-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101
        box = Sshd(Path(folder))
        try:
            (Path(folder) / "authorized_keys").chmod(0o644)
            give(box.home, BOX)
            person = Person(home, ENGINEER, path=move_in(home, box))
            print(HEAD, flush=True)
            first_hour(person, home / ".ssh", args.packages)
        finally:
            box.stop()
        print(f"\nsteps: {len(person.steps)}, with a riddle: {person.faults()}")
        return int(bool(person.faults()))


if __name__ == "__main__":
    sys.exit(main())
