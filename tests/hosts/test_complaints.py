"""What users of several hosts complain of most: each ends soon, in a line with host, cause and remedy.

Jobs without MXNet, so that what they take is the launcher's. What ends well here ends in a hang elsewhere.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import load_factor
from support.virtual_hosts import LOGIN, SSHD, VirtualHosts, missing

SCRIPTS = Path(__file__).resolve().parents[1] / "launcher/scripts"
JOINS = SCRIPTS / "joins.py"
TWO = ("--hosts", "node0:1,node1:1", "--workers", 2, "--clients", 2, "--servers", 1)
PURE = ("--hosts", "node0:1,node1:1", "--workers", 2)
SOON_S = 10
"""Until a complaint is answered, on a machine that has nothing else to do."""

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory):
    """Two hosts for all of these tests, which put back what they change."""
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(2, tmp_path_factory.mktemp("cluster")) as hosts:
        yield hosts


@pytest.fixture(name="change")
def _change(cluster, request):
    """Run a command on a host, and another one after the test."""

    def change(name, command, back):
        shell(cluster, name, command)
        request.addfinalizer(lambda: shell(cluster, name, back))

    return change


@pytest.fixture(name="job")
def _job(cluster):
    """Run a job to its end; return its exit code, what it has said, and the seconds that it took."""

    def run(*arguments, script=JOINS, where=LOGIN, ssh=None):
        began = time.monotonic()
        done = cluster.run(where, launch(cluster, *arguments, script=script, ssh=ssh), timeout=120)
        seconds = time.monotonic() - began
        return done.returncode, done.stdout + done.stderr, seconds

    return run


def launch(cluster, *arguments, script, ssh=None):
    """Return the command that starts a job."""
    return [
        *("env", f"PYTHONPATH={SCRIPTS / 'without_mxnet'}", "OMP_NUM_THREADS=1"),
        *(sys.executable, "-m", "mpilaunch.cli", "--ssh", ssh or cluster.ssh),
        *("--log-dir", f"{cluster.folder}/logs", *map(str, arguments), str(script)),
    ]


def said_until(cluster, command, *words):
    """Start a job and return it, which still runs, when one line of it has all of these words."""
    job = subprocess.Popen(
        cluster.command(LOGIN, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    for line in job.stdout:
        said.append(line)
        if all(word in line for word in words):
            return job
    pytest.fail(f"it has ended with {job.wait()} without a line with {words}:\n{''.join(said)}")


def shell(cluster, name, command):
    done = cluster.run(name, ["sh", "-c", command])
    assert done.returncode == 0, done.stderr


def is_soon(seconds):
    """Return whether that is as soon as promised, if other jobs have left it the processors."""
    return seconds < SOON_S * load_factor()


def line_with(said, *words):
    """Return whether one line has all of these words."""
    return any(all(word in line for word in words) for line in said.splitlines())


def test_a_network_that_leads_nowhere(cluster, job, change):
    """It has addresses on both hosts, and no cable between them."""
    for index, name in enumerate(("node0", "node1")):
        make = "ip link add wrong0 type veth peer name wrong1; ip link set wrong0 up; ip link set wrong1 up"
        make += f"; ip addr add 10.99.0.{index + 1}/24 dev wrong0"
        change(name, make, "ip link del wrong0")
    code, said, seconds = job(*TWO)
    assert (code, is_soon(seconds)) == (78, True), said
    assert "the hosts have 10.77.0.0/24, 10.99.0.0/24 in common: choose one with --interface" in said
    code, said, seconds = job(*TWO, "--interface", "wrong0")
    assert (code, is_soon(seconds)) == (78, True), said
    where = "host node0 does not reach host node1 at 10.99.0.2 by wrong0"
    assert line_with(said, where, "choose another network with --interface")
    code, said, seconds = job(*TWO, "--interface", "eth0")
    assert code == 0, said
    cluster.check_nothing_left()


def test_names_that_lead_to_the_loopback_and_interfaces_of_other_names(cluster, job, change):
    """As Debian's installer and udev make them: the job runs, from a login node and from a host of it."""
    own = "sed 's/^.* {0}$/127.0.1.1 {0}/' /etc/hosts >/tmp/own; mount --bind /tmp/own /etc/hosts"
    for name in ("node0", "node1"):
        change(name, own.format(name), "umount /etc/hosts")
        assert "127.0.1.1" in cluster.run(name, ["getent", "hosts", name]).stdout
    rename = "ip link set {0} down; ip link set {0} name {1}; ip link set {1} up"
    change("node1", rename.format("eth0", "ens5"), rename.format("ens5", "eth0"))
    for where, shape in ((LOGIN, PURE), ("node0", TWO)):
        code, said, _ = job(*shape, where=where)
        assert code == 0, said
        assert said.count("joined as") == 2
    code, said, seconds = job(*TWO, "--interface", "eth0")
    assert (code, is_soon(seconds)) == (78, True), said
    assert line_with(said, "--interface eth0", "host node1 has ens5 (10.77.0.2/24)")
    assert job(*TWO, "--interface", "10.77.0.0/24")[0] == 0
    cluster.check_nothing_left()


def test_an_sshd_that_is_late(cluster, job):
    """For some seconds it is waited for; then the host is named."""
    ssh = f"{cluster.ssh} -p 2222"
    code, said, seconds = job(*PURE, ssh=ssh)
    assert (code, is_soon(seconds)) == (78, True), said
    assert line_with(said, "host node0 cannot be used", "Connection refused", "start sshd there")
    late = f"sleep 3; exec {SSHD} -D -p 2222 -f {cluster.folder}/sshd_config"
    started = [
        subprocess.Popen(cluster.command(name, ["sh", "-c", late]), stderr=subprocess.DEVNULL)
        for name in ("node0", "node1")
    ]
    code, said, _ = job(*PURE, ssh=ssh)
    assert code == 0, said
    for name, each in zip(("node0", "node1"), started):
        cluster.run(name, ["pkill", "-f", "p 2222"])
        each.wait()


def test_hosts_that_ssh_does_not_trust_or_that_do_not_trust_us(cluster, job, tmp_path):
    """Neither waits for a password or a yes."""
    known = f"-o UserKnownHostsFile={tmp_path}/none"
    code, said, seconds = job(*TWO, ssh=f"{cluster.ssh.replace('ssh ', f'ssh {known} ')}")
    assert (code, is_soon(seconds)) == (78, True), said
    assert line_with(said, "host node0", "Host key verification failed", "by ssh node0 true")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True
    )
    key = f"ssh -F none -i {tmp_path}/other -o UserKnownHostsFile={cluster.folder}/known_hosts"
    code, said, seconds = job(*TWO, ssh=key)
    assert (code, is_soon(seconds)) == (78, True), said
    assert line_with(said, "host node0", "Permission denied", "ssh-copy-id node0")


def test_a_rank_from_which_no_route_leads_to_the_scheduler(cluster, job):
    """Why it has not come is said with the error that says so, and not in its own log alone."""
    script = cluster.folder / "cut.py"
    route = ["unreachable", "10.77.0.1/32"]
    cut = f"subprocess.run(['ip', 'route', 'add', *{route}], check=True)"
    script.write_text(
        f"import os, subprocess\nif os.environ['KVMPI_CLIENT'] == '1':\n    {cut}\n" + JOINS.read_text()
    )
    code, said, _ = job(*TWO, "--set", "connect_timeout=5", script=script)
    cluster.run("node1", ["ip", "route", "del", *route])
    assert code == 69, said
    assert line_with(
        said, "mpilaunch|   ", "missing: client1.0", "client1.0 cannot connect to tcp://10.77.0.1"
    )
    assert line_with(said, "what to do: look at the routes and firewalls between these hosts")
    cluster.check_nothing_left()


def test_a_start_that_hangs(cluster):
    """Who is missing is said, with its host."""
    script = cluster.folder / "late.py"
    sleeps = "import os, time\ntime.sleep(100 * int(os.environ['KVMPI_CLIENT']))\n"
    script.write_text(sleeps + JOINS.read_text())
    # Whether it has left MPI_Init by then depends on what else the machine does; client 0 may be late too.
    command = launch(cluster, *TWO, "--join-warning", 3, "--grace", 2, script=script)
    late = said_until(cluster, command, "(--join-warning)", "client1.0 on node1 has not")
    with late:
        cluster.run(LOGIN, ["pkill", "-TERM", "-f", "mpilaunch.cli"])
        late.communicate(timeout=60)
    assert late.returncode == 75  # ended by SIGTERM: it can be started again
    cluster.check_nothing_left()


def test_the_state_of_a_killed_job(cluster, job):
    """The next one begins at once, on the same hosts."""
    script = cluster.folder / "stays.py"
    stays = "print('THERE', flush=True)\nimport time\ntime.sleep(100)"
    script.write_text(JOINS.read_text().replace("worker.close()", stays))
    killed = said_until(cluster, launch(cluster, *TWO, script=script), "THERE")
    with killed:
        cluster.run(LOGIN, ["pkill", "-KILL", "-f", "mpilaunch.cli"])
        assert killed.wait(60) == -signal.SIGKILL
        code, said, _ = job(*TWO)
    assert code == 0, said
    cluster.check_nothing_left()


def test_a_host_that_lacks_the_mpi(cluster, job, change):
    """Its own library, or mpiexec's helper there."""
    empty = "touch /tmp/none; mount --bind /tmp/none {}"
    library = Path(sys.prefix) / "lib/libmpi.so.12"
    helper = Path(sys.prefix) / "bin/hydra_pmi_proxy"
    if not library.exists():
        pytest.skip("this MPI is not that of the wheel mpich")
    change("node1", empty.format(helper), f"umount {helper} || true")
    code, said, seconds = job(*PURE)
    assert (code != 0, is_soon(seconds)) == (True, True), said
    assert line_with(said, "its mpiexec has started no rank on", "node1"), said
    assert line_with(said, "what to do: is the same MPI at the same path on", "node1", "hydra_pmi_proxy")
    change("node1", f"umount {helper}; {empty.format(library)}", f"umount {library}")
    code, said, seconds = job(*PURE)
    assert code == 78, said
    assert line_with(said, "client0.1 on node1", "failed first")
    assert "MPI cannot be loaded" in said
    cluster.check_nothing_left()  # nor the segment of a rank that MPI has ended within MPI_Init


@pytest.mark.parametrize("told", [{"SLURM_STEP_NUM_TASKS": "4"}, {"PMI_SIZE": "4", "PMI_RANK": "0"}])
def test_ranks_that_srun_or_another_mpiexec_leaves_alone(told):
    """Each would train by itself; a stand-in, since what differs is in the environment."""
    ours = ("KVMPI_", "PMI", "OMPI_", "SLURM_")
    outer = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, str(JOINS)]
    environment = {**outer, **told, "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    words = (
        ("alone in its COMM_WORLD", "srun --mpi=pmi2") if "SLURM_STEP_NUM_TASKS" in told else ("PMI_SIZE",)
    )
    assert line_with(done.stderr, os.uname().nodename, *words), done.stderr


@pytest.mark.parametrize(
    ("told", "options", "words"),
    [
        (
            {"LSB_JOBID": "7"},
            (),
            ("LSF job 7 does not say which hosts it has", "LSB_MCPU_HOSTS", "--backend ssh --hosts"),
        ),
        ({}, ("--backend", "lsf"), ("LSB_JOBID is not set", "start mpilaunch with bsub")),
        (
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-node-0"},
            ("--backend", "ssh"),
            ("host train-node-0", "without /etc/mpi/hostfile", "mpilaunch render"),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HYDRA_HOST_FILE": "/etc/mpi/none"},
            ("--backend", "ssh"),
            ("HYDRA_HOST_FILE=/etc/mpi/none", "there is no such file"),
        ),
    ],
    ids=[
        "LSF without hosts",
        "LSF without a job",
        "an operator that runs no MPI",
        "a file that is not there",
    ],
)
def test_a_manager_that_does_not_say_which_hosts_there_are(tmp_path, told, options, words):
    """LSF without its variables, of which those of CSM are not needed; and an operator of another MPI."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mpilaunch",
            "--log-dir",
            str(tmp_path),
            *options,
            "--workers",
            "2",
            str(JOINS),
        ],
        env={**environment, **told},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, is_soon(time.monotonic() - began)) == (64, True), done.stderr
    assert line_with(done.stderr, *words), done.stderr
