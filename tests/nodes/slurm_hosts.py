"""Hosts as namespaces (network, UTS, IPC, PID, mount) with a real Slurm: munge on all, slurmctld on the first, slurmd
on all. Needs root, iproute2 and the Debian packages slurm-wlm and munge. Nothing outside the namespaces is changed.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import nodes
from namespaces import Network, run_head
from nodes import expect, wait_for

PROGRAMS = ("unshare", "nsenter", "munged", "slurmctld", "slurmd", "sbatch", "scontrol")

# A job's credential expires after 5 s, so a requeued job does not wait for two minutes. The hosts have cgroup/v1.
SLURM_CONF = """ClusterName=nsad
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MinJobAge=60
KillWait=5
MessageTimeout=5
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
NodeName=node[1-{count}] CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=batch Nodes=node[1-{count}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=node[1-{count}] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

INIT = """hostname node{number}
mount --bind {hosts} /etc/hosts
mount -t tmpfs tmpfs /run
mkdir -p -m 755 /run/munge
touch {up}
exec sleep infinity"""


def require():
    for program in PROGRAMS:
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            raise nodes.e2e.Skipped(f"the program {program} is not installed (apt install slurm-wlm munge util-linux)")
    if os.geteuid() != 0:
        raise nodes.e2e.Skipped("namespaces with a Slurm of their own need root")


class Host:
    def __init__(self, cluster, number):
        self.cluster, self.number, self.name = cluster, number, f"node{number}"
        self.up = cluster.folder / f"up{number}"
        self.process = self.init = None

    def start(self):
        self.up.unlink(missing_ok=True)
        script = INIT.format(number=self.number, hosts=self.cluster.folder / "hosts", up=self.up)
        self.process = subprocess.Popen(
            [*self.cluster.network.inside(self.number), "unshare", "--uts", "--ipc", "--mount", "--propagation", "private",
             "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-ec", script], stderr=subprocess.DEVNULL)
        wait_for(f"host {self.name}", self.up.exists)
        self.init = int(wait_for("its first process", lambda: next(
            (pid for pid in self.children(self.process.pid) if self.is_init(pid)), None)))
        return self

    def children(self, pid):
        found = []
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [child, *self.children(child)]
        return found

    def is_init(self, pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return any(line.split()[-1] == "1" and len(line.split()) > 2 for line in status.splitlines() if line.startswith("NSpid:"))

    def inside(self):
        return ["nsenter", "-t", str(self.init), "--net", "--uts", "--ipc", "--mount", "--pid", "--wdns=/", "--"]

    def run(self, *command, check=True):
        done = subprocess.run([*self.inside(), "env", f"SLURM_CONF={self.cluster.conf}", *map(str, command)],
                              capture_output=True, text=True, timeout=nodes.LIMIT)
        expect(not check or done.returncode == 0, f"{command} on {self.name}: {done.stdout}{done.stderr}")
        return done

    def start_services(self):
        self.run("bash", "-c", f"""set -e
mkdir -p -m 700 /run/own && cp {self.cluster.folder}/munge.key /run/own/key && chmod 400 /run/own/key
chown -R munge:munge /run/munge /run/own
setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged --key-file=/run/own/key \
  --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid --log-file=/run/own/log --seed-file=/run/own/seed""")
        if self.number == 1:
            self.run("/usr/sbin/slurmctld", "-f", self.cluster.conf)
        (self.cluster.folder / f"spool.{self.name}").mkdir(exist_ok=True)
        self.run("/usr/sbin/slurmd", "-f", self.cluster.conf)

    def processes(self, word):
        """Returns the pids, as the test sees them, of this host's processes whose command line has this word."""
        found = []
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == space and word in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(int(pid))
        return found

    def kill(self):
        """Ends every process of the host, as if it were switched off."""
        if self.init is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            self.process.wait(timeout=nodes.LIMIT)
            self.init = None


class Cluster:
    def __init__(self, folder, count):
        require()
        self.folder = folder
        folder.mkdir()
        (folder / "state").mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.write_text(SLURM_CONF.format(folder=folder, count=count))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{i} node{i}\n" for i in range(1, count + 1)))
        self.network = Network(count)
        self.hosts = [Host(self, number) for number in range(1, count + 1)]

    def start(self):
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.start_services()
        self.wait_idle(len(self.hosts))
        return self

    def start_head(self, node, orphan_seconds):
        """Starts nsad on the first host. It asks this Slurm for nodes."""
        return run_head(node, self.hosts[0].inside(), f"orphan_seconds = {orphan_seconds}",
                        environment={"SLURM_CONF": str(self.conf)})

    def wait_idle(self, count):
        wait_for(f"{count} idle nodes", lambda: self.run("sinfo", "-h", "-N", "-p", "batch", "-t", "idle", "-o", "%N",
                                                         check=False).stdout.split().__len__() >= count)

    def run(self, *command, check=True):
        return self.hosts[0].run(*command, check=check)

    def job(self, job):
        """Returns scontrol's answer about the job as a dictionary. Empty if the job is unknown."""
        line = self.run("scontrol", "--oneliner", "show", "job", job, check=False).stdout
        return dict(pair.split("=", 1) for pair in line.split() if "=" in pair)

    def close(self):
        for host in self.hosts:
            host.kill()
        time.sleep(0.1)
        self.network.close()
