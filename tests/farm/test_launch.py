"""The ways to start workers: systemd's units, ssh on a loopback port, a real Slurm with three nodes on
this machine. Each is skipped where its programs are not installed.

timeout: 600"""
# labels: long
import os
import pathlib
import pwd
import shutil
import subprocess
import time

from harness import FAULTY, JOBS, PACE, PROGRAM, Farm, ROOT, Skip, WORK, done, free_port, own, run, start, total


def systemd_units():
    """the unit files are what systemd takes"""
    if not shutil.which("systemd-analyze"):
        raise Skip("no systemd-analyze")
    d = WORK / "units"
    d.mkdir()
    for p in sorted((ROOT / "launch").glob("*.service")):
        text = p.read_text().replace("/usr/local/bin/kondense", PROGRAM)
        text = "".join(line for line in text.splitlines(True) if not line.startswith("Documentation="))
        (d / p.name).write_text(text)
        r = subprocess.run(["systemd-analyze", "verify", str(d / p.name)], capture_output=True, text=True, check=False)
        ours = [s for s in r.stderr.splitlines() if p.name.split("@")[0].split(".")[0] in s]
        assert not ours, "\n".join(ours)


def ssh():
    """workers started, looked at and stopped over ssh"""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if not sshd or os.getuid():
        raise Skip("needs sshd and root for a server of its own")
    d = WORK / "ssh"
    d.mkdir(mode=0o700)
    port = free_port()
    for k in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(d / k)], check=True)
    (d / "authorized").write_text((d / "user.pub").read_text())
    (d / "conf").write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {d}/host\nPidFile none\nUsePAM no\n"
                            f"AuthorizedKeysFile {d}/authorized\nStrictModes no\nPermitRootLogin yes\n")
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    server = start(["-D", "-e", "-f", d / "conf"], d / "sshd.log", program=sshd)
    f = Farm("overssh", lease=10)
    f.convert()
    f.until(lambda s: True)
    (d / "hosts").write_text("127.0.0.1  # this one\n")
    env = {**os.environ, "SSH": f"ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={d}/known "
                                f"-i {d}/user -p {port}", "KONDENSE": PROGRAM, "FARM_DIR": str(d / "it's here")}
    script = str(ROOT / "launch/farm-ssh.sh")

    def launch(*args):
        r = subprocess.run(["sh", script, *map(str, args)], env=env, capture_output=True, text=True, timeout=60,
                           check=False)
        assert r.returncode == 0, r.stderr
        return r.stdout
    assert "started" in launch("start", d / "hosts", f.join, "--threads", "1")
    assert "runs already" in launch("start", d / "hosts", f.join)
    f.until(done(2))
    assert "runs" in launch("status", d / "hosts")
    figures = f.finish()
    assert total(figures) == JOBS, figures
    launch("stop", d / "hosts")
    time.sleep(1)
    assert "does not run" in launch("status", d / "hosts")
    server.kill()


class Slurm:
    """munged, slurmctld and three slurmd on this host, without systemd."""

    def __init__(self):
        self.dir = WORK / "slurmd"
        need = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
        if any(not shutil.which(n, path="/usr/sbin:/usr/bin") for n in need) or os.getuid():
            raise Skip("needs slurmctld, slurmd, munge and root")
        self.dir.mkdir()
        self.munge()
        host = os.uname().nodename
        ports = [free_port() for _ in range(4)]
        nodes = "".join(f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs=1 State=UNKNOWN\n"
                        for i in (1, 2, 3))
        (self.dir / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}\nSlurmUser=root\n"
            f"SlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={self.dir}/munge/socket\n"
            f"StateSaveLocation={self.dir}/state\nSlurmdSpoolDir={self.dir}/spool.%n\n"
            f"SlurmctldPidFile={self.dir}/ctld.pid\nSlurmdPidFile={self.dir}/%n.pid\n"
            f"SlurmctldLogFile={self.dir}/ctld.log\nSlurmdLogFile={self.dir}/%n.log\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n"
            "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
            "ReturnToService=2\nSlurmdParameters=config_overrides\nSelectType=select/cons_tres\nKillWait=5\n"
            f"SelectTypeParameters=CR_CPU\n{nodes}PartitionName=all Nodes=ALL Default=YES State=UP\n")
        (self.dir / "state").mkdir()
        self.env = {**os.environ, "SLURM_CONF": str(self.dir / "slurm.conf")}
        env = {"SLURM_CONF": self.env["SLURM_CONF"]}
        start(["-D"], self.dir / "ctld.out", env, "/usr/sbin/slurmctld")
        self.node = {}
        for i in (1, 2, 3):
            self.start_node(i)
        end = time.time() + 30 * PACE
        while "3 idle" not in (said := self.call("sinfo", "-h", "-o", "%D %t")):
            if time.time() > end:
                raise Skip(f"Slurm does not come up on this host: {said.strip()}")
            time.sleep(0.3)

    def munge(self):
        d = self.dir / "munge"
        d.mkdir()
        user = pwd.getpwnam("munge")
        key = d / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for p in (d, key):
            os.chown(p, user.pw_uid, user.pw_gid)
        self.dir.chmod(0o755)
        p = subprocess.Popen(["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
                              "/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={d}/socket",
                              f"--pid-file={d}/pid", f"--log-file={d}/log", f"--seed-file={d}/seed"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        own(p)

    def call(self, *args):
        return subprocess.run(args, env=self.env, capture_output=True, text=True, check=False).stdout


    def start_node(self, i):
        self.node[i] = start(["-D", "-N", f"n{i}"], self.dir / f"n{i}.out", {"SLURM_CONF": self.env["SLURM_CONF"]},
                             "/usr/sbin/slurmd")


def slurm():
    """21: sbatch starts three pilots; a task and a slurmd are killed, the others go on; requeued, the pilots return"""
    s = Slurm()
    f = Farm("slurm", lease=3)
    f.convert()
    f.until(lambda st: True)
    out = f.dir / "sbatch.log"
    r = subprocess.run(["sbatch", "--ntasks", "3", "--output", str(out), str(ROOT / "launch/kondense-farm.sbatch"),
                        str(f.join), "--threads", "1"],
                       env={**s.env, "KONDENSE": FAULTY, "TMPDIR": str(f.dir), "KONDENSE_TEST_FAULT": "slow",
                            "KONDENSE_TEST_FAULT_MS": "2500"}, capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    job = r.stdout.split()[-1]
    f.until(lambda st: sum(w["id"] != "local" for w in st["workers"]) == 3, 60)
    victims = subprocess.run(["pgrep", "-f", f"worker --quiet --join {f.join}"], capture_output=True, text=True,
                             check=False).stdout.split()
    pids = [int(v) for v in victims if pathlib.Path(f"/proc/{v}/comm").read_text().startswith("kondense")]
    assert len(pids) == 3, victims
    os.kill(pids[0], 9)
    time.sleep(1)
    s.node[3].kill()
    s.node[3].wait()
    before = f.until(done(3), 60)["jobs_done"]
    s.start_node(3)
    s.call("scontrol", "requeue", job)
    # All pilots are asked to end, and hand back what they hold; the job waits its turn, which is cut short here.
    f.until(lambda st: all(w["held"] == 0 for w in st["workers"]), 60)
    end = time.time() + 60 * PACE
    while not all(w in s.call("scontrol", "show", "job", job) for w in ("JobState=RUNNING", "Restarts=1")):
        s.call("scontrol", "update", f"JobId={job}", "StartTime=now")
        assert time.time() < end, s.call("scontrol", "show", "job", job)
        time.sleep(0.5)
    figures = f.finish(200)
    assert total(figures) == JOBS and before < JOBS, (before, figures)
    # They came back as who they were: no further tokens were spent.
    assert len(figures) == 4, figures
    s.call("scancel", "--user", "root")


if __name__ == "__main__":
    run([systemd_units, ssh, slurm])
