"""A Slurm cluster with accounts, qualities of service and their limits: slurmdbd over a MariaDB of its own."""

import shutil
import socket
import subprocess

from tests.backends.slurm import SBIN, SlurmCluster, missing

PROGRAMS = ("slurmdbd", "mariadbd", "mysql_install_db")
ENFORCED = (
    "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1",
    "AccountingStoragePass={base}/socket/munge", "AccountingStorageEnforce=associations,limits,qos",
    "AccountingStorageTRES=gres/gpu", "ClusterName=counted",
)  # fmt: skip


def lacking() -> list[str]:
    """Return the programs that are not here."""
    return [*missing(), *(name for name in PROGRAMS if not shutil.which(name, path=SBIN))]


class CountedCluster(SlurmCluster):
    """One node; root may use the account `lab` and, besides the usual one, the quality `single`: one GPU at a time."""

    def __init__(self) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.dbd_port = int(one.getsockname()[1])
        super().__init__(1, 2, node="counted", more=[*ENFORCED, f"AccountingStoragePort={self.dbd_port}"])

    def env(self) -> dict[str, str]:
        """Return the environment of all its programs: MariaDB's library finds the socket by it."""
        return {**super().env(), "MYSQL_UNIX_PORT": f"{self.base}/db/sock"}

    def before_controller(self) -> str:
        """Start the database and slurmdbd."""
        if why := self._database():
            return why
        config = self.base / "slurmdbd.conf"
        lines = [
            "AuthType=auth/munge", f"AuthInfo=socket={self.base}/socket/munge", f"DbdHost={socket.gethostname().partition(chr(46))[0]}", "DbdAddr=127.0.0.1", f"DbdPort={self.dbd_port}",
            "SlurmUser=root", "StorageType=accounting_storage/mysql", "StorageHost=localhost", "StorageUser=root",
            "StorageLoc=slurm", f"LogFile={self.base}/log/dbd.log", f"PidFile={self.base}/dbd.pid",
        ]  # fmt: skip
        config.write_text("\n".join(lines) + "\n")
        config.chmod(0o600)
        self._run("slurmdbd", "-D")
        if not self._comes(lambda: "Cluster" in self.say("sacctmgr", "list", "cluster")):
            log = self.base / "log" / "dbd.log"
            return "slurmdbd does not answer: " + (log.read_text(errors="replace")[-300:] if log.exists() else "")
        self.say("sacctmgr", "-i", "add", "cluster", "counted")
        return ""

    def start(self) -> str:
        """Start it, and enter who may do what; return why it does not come up."""
        if why := super().start():
            return why
        for words in (
            ["add", "account", "lab", "cluster=counted"],
            ["add", "qos", "single", "MaxTRESPerUser=gres/gpu=1"],  # the controller has made the resource known
            ["add", "user", "root", "account=lab", "cluster=counted"],
            ["modify", "user", "root", "set", "qos=normal,single", "defaultqos=normal", "defaultaccount=lab"],
        ):
            self.say("sacctmgr", "-i", *words)
        shown = self.say("sacctmgr", "-n", "-P", "show", "assoc", "user=root", "account=lab", "format=qos")
        return "" if "single" in shown else f"sacctmgr made no such user: {shown!r}"

    def _database(self) -> str:
        data = self.base / "db"
        data.mkdir()
        install = [
            "mysql_install_db",
            "--no-defaults",
            f"--datadir={data}/data",
            "--auth-root-authentication-method=normal",
        ]
        done = subprocess.run([*install, "--user=root"], capture_output=True, text=True, check=False, env=self.env())
        if done.returncode:
            return f"no database can be made: {done.stderr[-300:]}"
        socket_ = data / "sock"
        self._run("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}/data", f"--socket={socket_}",
                  "--skip-networking", f"--pid-file={data}/pid", "--innodb-buffer-pool-size=64M")  # fmt: skip
        return "" if self._comes(socket_.exists) else "mariadbd does not start"
