"""A closed folder on the way to what a job needs is got around, and what that takes does not pile up."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.hostd.conftest import needs_root

REACH = textwrap.dedent(
    """
    import os, sys
    from gpu_mcp_server.hostd.sandbox import mounts
    closed, mounts.LAST = sys.argv[1:]
    mounts.RUN = closed + "/run"
    place = mounts.Mounts(closed + "/state").make_reachable(closed + "/wanted", 61500)
    os.setresuid(61500, 61500, 61500)
    print(place, os.listdir(place))
    """
)


def reached(closed: Path, last: Path) -> str:
    command = [sys.executable, "-c", REACH, str(closed), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_supervisors_that_find_no_open_folder_share_one_where_everybody_may_write(state: Path, tmp_path: Path):
    (tmp_path / "wanted").mkdir()
    (tmp_path / "wanted" / "file").write_text("")
    tmp_path.chmod(0o700)
    last = state.parent / "mounts"
    for _ in range(3):
        assert reached(tmp_path, last) == f"{last}/0 ['file']\n"
    assert list(state.parent.iterdir()) == [last]
    assert list((last / "0").iterdir()) == [], "the mount was the supervisor's own"


@needs_root
def test_a_name_that_somebody_else_took_there_is_left_alone(state: Path, tmp_path: Path):
    (tmp_path / "wanted").mkdir()
    tmp_path.chmod(0o700)
    last, elsewhere = state.parent / "mounts", tmp_path / "elsewhere"
    elsewhere.mkdir()
    last.symlink_to(elsewhere)
    assert reached(tmp_path, last).startswith(f"{last}-")
    assert list(elsewhere.iterdir()) == []
