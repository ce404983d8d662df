"""A real dockerd, with an image made of this machine's own system: nothing is downloaded."""

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_mcp_server.backends.docker import probe_socket
from gpu_mcp_server.settings.server_settings import DockerHost

DOCKERD = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin") or ""
IMAGE = "gpu-mcp-test:1"
FOLDERS = ("usr", "etc", "etc/alternatives", "proc", "sys", "dev", "tmp", "state", "root", "home", "var")
LINKS = ("bin", "sbin", "lib", "lib64")
START_S = 30.0


class Dockerd:
    """A running dockerd without network."""

    def __init__(self, path: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dk-", dir="/var/tmp"))
        self.url = f"unix://{self.folder}/s"
        command = [
            DOCKERD, "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec", "-H", self.url,
            "-p", f"{self.folder}/pid", "--bridge", "none", "--iptables=false", "--ip-masq=false", "--storage-driver", "vfs",
            "--shutdown-timeout", "1",
        ]  # fmt: skip
        self.log = (self.folder / "log").open("wb")
        env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)
        self.api: Any = None

    def started(self) -> str:
        """Wait until it answers; say why it does not."""
        import docker.errors

        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                probe_socket(self.url)
                self.api = docker.APIClient(base_url=self.url, version="auto", timeout=30)
                break
            except (OSError, docker.errors.DockerException):
                time.sleep(0.1)
        else:
            return (self.folder / "log").read_text(errors="replace").strip().rpartition("\n")[2] or "no answer"
        self.api.import_image_from_data(_system(), repository=IMAGE.partition(":")[0], tag="1")
        return ""

    def settings(self, **changes: Any) -> DockerHost:
        binds = ["/usr", "/etc/alternatives"] + [p for p in ("/etc/ld.so.cache",) if Path(p).exists()]
        return DockerHost.model_validate(
            {"image": IMAGE, "docker_url": self.url, "mounts": binds, "idle_s": 600, **changes}
        )

    def containers(self) -> list[dict[str, Any]]:
        return list(self.api.containers(all=True))

    def stop(self) -> None:
        """Remove containers, end it by its pid, and delete all that it made."""
        if self.api is not None:
            for one in self.containers():
                self.api.remove_container(one["Id"], force=True)
            self.api.close()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _system() -> bytes:
    """Return an image of empty folders, over which the system's own are shown."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in FOLDERS:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name in LINKS:
            info = tarfile.TarInfo(name)
            if Path(f"/{name}").is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, str(Path(f"/{name}").readlink()).lstrip("/")
            archive.addfile(info) if info.linkname else None
        info = tarfile.TarInfo("etc/ld.so.cache")
        archive.addfile(info)
    return data.getvalue()


def fake_gpu_hook(folder: Path) -> Path:
    """Return a folder with a stand-in for NVIDIA's hook that notes which GPUs Docker asked it for."""
    hook = folder / "nvidia-container-runtime-hook"
    note = folder / "asked"
    hook.write_text(
        "#!/usr/bin/python3\nimport json, sys\nbundle = json.load(sys.stdin)['bundle']\n"
        "env = json.load(open(bundle + '/config.json'))['process']['env']\n"
        f"open({str(note)!r}, 'a').write(json.dumps([e for e in env if 'NVIDIA' in e]) + '\\n')\n"
    )
    hook.chmod(0o755)
    return folder


def asked(folder: Path) -> list[list[str]]:
    """Return what Docker asked the stand-in for."""
    note = folder / "asked"
    return [json.loads(line) for line in note.read_text().splitlines()] if note.exists() else []
