"""A whole SLURM of one's own on this machine: munge, accounting, a controller and nodes, on loopback, in one folder.

`python tests/slurm/cluster.py` starts one and a shell that talks to it. Needs root and the packages in PACKAGES.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

PACKAGES = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server"  # Debian's names; .ci/run installs them
DAEMONS = ["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"]
PROGRAMS = [*DAEMONS, "mariadb-install-db", "sbatch", "sacctmgr", "setpriv"]
NODES, CPUS, MEMORY_MB, MAX_ARRAY_SIZE = 2, 4, 8000, 24  # what each node claims to have, whatever the machine has
PATIENCE_S = 600  # for a daemon to answer; only keeps what is broken from hanging
# A daemon does not outlive a killed test run; sh looks whether that was killed before setpriv had asked to be told.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", 'test "$PPID" = "$0" && exec "$@"']

SLURM_CONF = """\
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits until its old credential has expired: 120 s if nothing is said.
AuthInfo=socket={folder}/munge.socket,cred_expire=8
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[1]}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,qos
AccountingStoreFlags=job_comment
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,preempt_strict_order
EnforcePartLimits=ALL
MaxArraySize={max_array_size}
MinJobAge=300
ReturnToService=2
SlurmdTimeout=60
MessageTimeout=30
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}-{last_port} \
CPUs={cpus} RealMemory={memory_mb} Gres=gpu:toy:2 Feature=loopback
PartitionName=low Nodes=ALL Default=YES MaxTime=60 DefMemPerCPU=500 PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=60 DefMemPerCPU=500 PriorityTier=10
"""

SLURMDBD_CONF = """\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm
"""


def missing() -> str:
    """Say why no SLURM can be started here; empty if one can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if lacking:
        return f"no {', '.join(lacking)} here: apt-get install {PACKAGES}"
    return "" if os.geteuid() == 0 else "a SLURM of one's own needs root"


def search_path() -> str:
    """Give PATH with the folders of daemons, which a user's often lacks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def free_ports(number: int) -> list[int]:
    """Find consecutive ports that nobody listens on."""
    # Below those that the kernel gives to whoever connects; each of pytest's processes has its own.
    lowest = 10_000 + 2_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10)
    while True:
        first = random.randrange(lowest, lowest + 2_000 - number)
        with suppress(OSError), ExitStack() as probes:
            for port in range(first, first + number):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + number))


class Cluster:
    """Two nodes n1 and n2 of 4 CPUs each; partitions low and high, of which high preempts low by requeueing."""

    def __init__(self, folder: Path):
        """Write the configuration; `folder` is emptied by `stop`."""
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": search_path()}
        self.commands: dict[str, tuple[str, ...]] = {}  # by the daemon's name
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(3 + NODES)
        self.database_port = ports.pop()
        host = socket.gethostname().partition(".")[0]
        values = {
            **{"host": host, "folder": folder, "ports": ports, "last_port": ports[-1], "nodes": NODES, "cpus": CPUS},
            **{"memory_mb": MEMORY_MB, "max_array_size": MAX_ARRAY_SIZE, "database_port": self.database_port},
        }
        for name in ("state", "database", "scratch", "log", *(f"spool-n{i}" for i in range(1, NODES + 1))):
            (folder / name).mkdir()
        folder.chmod(0o755)  # munged refuses others
        (folder / "slurm.conf").write_text(SLURM_CONF.format(**values))
        for number in range(2):  # GPUs that can be asked for, and are nothing
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu Type=toy File={folder}/gpu[0-1]\n")
        (folder / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(**values))
        (folder / "slurmdbd.conf").chmod(0o600)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)

    def start(self) -> None:
        """Start everything and wait until both nodes are idle."""
        files = {name: f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
        self.launch("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files.values())
        self.start_database()
        self.wait("munge", lambda: (self.folder / "munge.socket").exists())
        self.launch("slurmdbd", "-D")
        self.wait("slurmdbd", lambda: self.run("sacctmgr", "-i", "add", "cluster", "toy").returncode == 0)
        self.say("sacctmgr", "-i", "add", "account", "lab")
        self.say("sacctmgr", "-i", "add", "user", "root", "account=lab")
        self.launch("slurmctld", "-D")
        for number in range(1, NODES + 1):
            self.launch("slurmd", "-D", "-N", f"n{number}", called=f"n{number}")
        self.wait("the nodes", self.idle)

    def start_database(self) -> None:
        """Make an empty database and its server, for accounting."""
        data = f"--datadir={self.folder}/database"
        scratch = self.folder / "scratch"  # of its own: in a shared one temporary tables of several have the same names
        install = ["mariadb-install-db", "--no-defaults", data, "--skip-test-db", "--user=root"]
        env = {**self.env, "TMPDIR": str(scratch)}
        done = subprocess.run(install, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db: {done.stdout}{done.stderr}")
        self.launch(
            *("mariadbd", "--no-defaults", data, "--user=root", "--skip-grant-tables", "--bind-address=127.0.0.1"),
            f"--tmpdir={scratch}",
            *(f"--port={self.database_port}", f"--socket={self.folder}/database.socket"),
            *("--innodb-buffer-pool-size=16M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"),
        )

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.database_port)) == 0

        self.wait("mariadbd", answers)

    def launch(self, *command: str, called: str = "") -> None:
        """Start a daemon in the foreground, its output in `log/`."""
        called = called or command[0]
        self.commands[called] = command
        with open(self.folder / "log" / f"{called}.txt", "ab") as log:
            self.daemons[called] = subprocess.Popen(
                [*DIES_WITH_US, str(os.getpid()), *command],
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self, called: str, number: int = signal.SIGKILL) -> None:
        """End a daemon by a signal and wait until it is gone."""
        self.daemons[called].send_signal(number)
        self.daemons[called].wait(PATIENCE_S)

    def crash(self, node: str) -> None:
        """End a node as a power cut does: its daemon and whatever runs there, without a word to anybody."""
        there = [self.daemons[node].pid]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                sockets = [str(socket.laddr) for socket in process.net_connections("unix")]  # of SLURM's own for a step
                spool = f"{self.folder}/spool-{node}/"
                named = process.environ().get("SLURMD_NODENAME") == node and self.owns(process)
                if named or any(path.startswith(spool) for path in sockets):
                    there.append(process.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: none lives to see another's end
            for pid in there:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.daemons[node].wait(PATIENCE_S)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a SLURM command, with the environment as it is now: what a test sets reaches its jobs, too."""
        ours = {name: self.env[name] for name in ("SLURM_CONF", "PATH")}
        return subprocess.run(command, env={**os.environ, **ours}, capture_output=True, text=True, timeout=PATIENCE_S)

    def rest(self) -> None:
        """End all jobs and bring back what a test took away, so that the next one finds an idle cluster."""
        for called, command in self.commands.items():
            if self.daemons[called].poll() is not None:
                self.launch(*command, called=called)
        self.wait("squeue", lambda: self.run("squeue").returncode == 0)
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        self.run("scancel", "--user=root")
        for number in range(1, NODES + 1):
            self.run("scontrol", "update", f"nodename=n{number}", "state=resume")
        self.wait("an idle cluster", lambda: not self.run("squeue", "-h").stdout and self.idle())

    def idle(self) -> bool:
        """Tell whether both nodes are there and do nothing."""
        return self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T").stdout.split() == ["idle"] * NODES

    def say(self, *command: str) -> str:
        """Run a SLURM command that must succeed; gives its output."""
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        """Wait until something answers.

        Raises:
            RuntimeError: with the end of every daemon's log, if it does not.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                tails = [f"{log.name}: {log.read_text()[-1000:]}" for log in (self.folder / "log").glob("*.txt")]
                raise RuntimeError("\n".join([f"waited {PATIENCE_S} s for {what}", *tails]))
            time.sleep(0.2)

    def stop(self) -> None:
        """End every process of this cluster, jobs included, and delete its folder."""
        for _ in range(50):  # a step's daemon may just be starting something
            ours = [process for process in psutil.process_iter() if self.owns(process)]
            for process in ours:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if not ours:
                break
            time.sleep(0.1)
        for daemon in self.daemons.values():
            daemon.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def owns(self, process: psutil.Process) -> bool:
        """Tell whether a process was started with this cluster's configuration; its jobs were."""
        try:  # not psutil's environ(), which ends where slurmstepd has written its title over the beginning
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return process.pid != os.getpid() and f"SLURM_CONF={self.env['SLURM_CONF']}".encode() in variables


def main() -> int:
    """Start a cluster and a shell in it; both end together."""
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return 1
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-")))
    try:
        cluster.start()
        print(f"SLURM_CONF={cluster.env['SLURM_CONF']}; sinfo, squeue, sbatch work here; exit ends it all")
        subprocess.run([os.environ.get("SHELL", "sh"), *sys.argv[1:]], env=cluster.env)
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
