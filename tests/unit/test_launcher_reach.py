"""How hosts are reached: by which commands, and what becomes of an agent that is silent or told to end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, UsageError
from mpilaunch import cli
from mpilaunch.hosts import survey
from mpilaunch.hosts.cluster import ClusterHosts, is_here, make_reach
from mpilaunch.hosts.hostlist import Placement
from mpilaunch.hosts.lsf import LsfReach
from mpilaunch.hosts.reach import AGENT
from mpilaunch.hosts.remote import RemoteHost
from mpilaunch.hosts.slurm import SlurmReach
from mpilaunch.hosts.ssh import SshReach
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.mpi import FLAVOURS, Mpi
from mpilaunch.plan import RECORDS, Paths, Sites, make_plan
from mpilaunch.rank.reporter import VARIABLES
from mpilaunch.signals import SIGNALS, as_bytes

HYDRA, OPEN_MPI = (Mpi(flavour, "5", "/lib/libmpi.so", "/bin/mpiexec") for flavour in FLAVOURS)


def test_srun_is_told_the_pmi_and_where_each_rank_goes():
    """A host stands in the list for each of its ranks; who has set Slurm's variable is left alone."""
    reach = SlurmReach({"SLURM_CPUS_PER_TASK": "3"}, ["agent"])
    words = reach.ranks(HYDRA, ["b", "b", "a"], "", "", ["A"])
    assert words[:2] == ("srun", "--exact")
    assert {"--mpi=pmi2", "--nodes=2", "--ntasks=3", "--cpus-per-task=3"} <= set(words)
    assert words[-2:] == ("--distribution=arbitrary", "--nodelist=b,b,a")
    assert "--mpi=pmix" in reach.ranks(OPEN_MPI, ["a"], "", "", ["A"])
    told = SlurmReach({"SLURM_MPI_TYPE": "cray_shasta"}, ["agent"])
    assert not [word for word in told.ranks(HYDRA, ["a"], "", "", []) if word.startswith("--mpi")]
    assert (reach.threads(64, 2), told.threads(64, 2)) == (3, 1)
    assert {"--overlap", "--nodelist=a", "--unbuffered"} <= set(reach.agent("a"))
    assert reach.agent("a")[-1] == "agent"


def test_ssh_and_blaunch():
    """One is given a text for a shell, the other plain words; mpiexec is told which of them it runs."""
    ssh, lsf = SshReach("ssh -F 'my file'", ["env", "X=a b", "python"]), LsfReach(["env", "python"])
    assert ssh.agent("h")[:3] == ["ssh", "-F", "my file"]
    assert ssh.agent("h")[-2:] == ["h", "exec env 'X=a b' python"]
    assert "-F 'my file'" in ssh.script
    assert lsf.agent("h") == ["blaunch", "h", "env", "python"]
    for reach, launcher in ((ssh, "ssh"), (lsf, "lsf")):
        words = reach.ranks(HYDRA, ["a", "a", "b"], "/private/ssh", "10.0.0.1", ["A"])
        assert words[:5] == ("/bin/mpiexec", "-launcher", launcher, "-launcher-exec", "/private/ssh")
        assert words[-2:] == ("-n", "3")
        assert "a:2,b:1" in words
        assert "a:1,b:2,a:1" in reach.ranks(HYDRA, ["a", "b", "b", "a"], "/private/ssh", "10.0.0.1", [])
        assert reach.threads(5, 2) == 2


def test_what_to_try_by_hand_is_what_was_tried():
    """By the command of each manager; an environment that lacks something is named by all alike."""
    reaches = {"ssh": SshReach("ssh", []), "blaunch": LsfReach([]), "srun": SlurmReach({}, ["agent"])}
    for command, reach in reaches.items():
        remedy = reach.remedy("h", "exit code 1")
        assert remedy.startswith(f"try it by hand: {command} ")
        assert remedy.endswith(" true")
        assert "h" in remedy.replace("=", " ").split()
        assert "the same Python environment there" in reach.remedy("h", "No module named mpilaunch")
    assert "firewall let ssh" not in reaches["srun"].remedy("h", "did not answer within 30 s")


def test_open_mpi_takes_along_what_hydra_does():
    """The ranks' settings; and its daemons, which have no script that reaches hosts, start no others."""
    hosts = ["a", "b", "b", "a"]
    words = SshReach("ssh", []).ranks(OPEN_MPI, hosts, "/private/ssh", "10.0.0.1", {"B", "A"})
    assert words[:4] == ("/bin/mpiexec", "--mca", "plm_rsh_agent", "sh /private/ssh")
    assert words[-6:-2] == ("-x", "A", "-x", "B")
    after = {option: words[place + 1] for place, option in enumerate(words[:-1])}
    assert after["plm_rsh_no_tree_spawn"] == "1"
    assert after["plm"].startswith("^")
    assert (after["--host"], after["--map-by"]) == ("a,b,b,a", "seq")
    assert words[-2:] == ("-n", "4")


def test_ranks_of_open_mpi_are_given_all_that_a_job_says():
    """What is inherited, what the plan says, and what is known only once the job runs."""
    node = NodeConfig(num_workers=1, num_servers=1)
    spec = JobSpec(Target.SCRIPT, ("train.py",), node=node, env=(("OWN", "1"),), max_restarts=1)
    where = Placement(("a",), (("a",),), ("a",))
    sites = Sites(
        *(where, {"a": "10.0.0.1"}, "10.0.0.1", SshReach("ssh", []), "/private/ssh"),
        cores={"a": 2},
        inherited=frozenset({"PATH"}),
    )
    named = set(make_plan(spec, OPEN_MPI, Paths("/private"), sites=sites).clients[0].argv)
    assert named >= {"PATH", "OWN", "KVMPI_RECORD_DIR", "KVMPI_SCHEDULER", "KVMPI_INCARNATION"}
    alone = replace(spec, node=replace(node, num_servers=0), max_restarts=0)
    named = set(make_plan(alone, OPEN_MPI, Paths("/private"), sites=sites).clients[0].argv)
    assert not named & {"KVMPI_SCHEDULER", "KVMPI_INCARNATION"}


def test_a_dry_run_shows_what_ranks_of_open_mpi_inherit(monkeypatch, capsys, tmp_path):
    """Its command, pasted into a shell, takes along what the job's would."""
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(cli, "find_mpi", lambda: OPEN_MPI)
    hosts = ("--ssh", "true", "--hosts", "a,b", "--workers", "2")
    assert cli.main(["--dry-run", "--backend", "ssh", *hosts, str(script)]) == 0
    assert " -x PATH " in capsys.readouterr().out


def test_services_are_shielded_from_slurm():
    """They ignore the SIGTERM that comes to all processes of a job: ranks save first. ssh sends none."""
    spec = JobSpec(Target.SCRIPT, ("train.py",), node=NodeConfig(num_workers=1, num_servers=1))
    where = Placement(("a",), (("a",),), ("a",))
    for reach, shielded in ((SlurmReach({}, []), True), (SshReach("ssh", []), False)):
        sites = Sites(where, {"a": "10.0.0.1"}, "10.0.0.1", reach, "/private/ssh", cores={"a": 2})
        plan = make_plan(spec, HYDRA, Paths("/private"), sites=sites)
        assert plan.shielded is shielded
        for service in (plan.scheduler, *plan.servers):
            assert (service.argv[:2] == ("env", "--ignore-signal=TERM")) is shielded
        assert plan.clients[0].argv[0] == ("srun" if shielded else "/bin/mpiexec")


def test_sockets_of_one_host_are_for_one_host():
    """It may have several names; where it is not the only one, nothing is started."""
    node = NodeConfig(num_workers=2, num_servers=1, transport="ipc")
    spec = JobSpec(Target.SCRIPT, ("train.py",), node=node)
    where = Placement(("a", "b"), (("a", "b"),), ("a",))
    reach = SshReach("ssh", [])

    def plan(spec, b):
        sites = Sites(where, {"a": "10.0.0.1", "b": b}, "10.0.0.1", reach, "/private/ssh", cores={})
        return make_plan(spec, HYDRA, Paths("/private"), sites=sites)

    assert plan(spec, b="10.0.0.1").servers
    with pytest.raises(UsageError, match=r"--transport ipc is .* this job has a and b: give"):
        plan(spec, b="10.0.0.2")
    alone = replace(spec, node=replace(node, num_servers=0))
    assert not plan(alone, b="10.0.0.2").servers


def test_a_program_that_is_not_there(monkeypatch, tmp_path):
    """The back end and its program are named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for backend, program in (("slurm", "srun"), ("lsf", "blaunch"), ("ssh", "ssh")):
        with pytest.raises(ConfigurationError, match=f"--backend {backend}: {program} is not on PATH"):
            make_reach("ssh", backend, {})


@pytest.fixture
def agent(tmp_path):
    """An agent that this process has started itself."""
    command = [sys.executable, "-m", AGENT]
    host = RemoteHost(
        "h", command, remedy=str, directory=str(tmp_path / "private"), silence=1.0, patience=1.0
    )
    host.facts(30.0)
    host.open(str(tmp_path), 30.0)
    yield host
    host._process.send_signal(signal.SIGCONT)
    host.close()
    host.join()


def test_an_agent_that_is_told_to_end(agent):
    """It tells the launcher, and goes on until that has done what there is to do."""
    agent._process.send_signal(signal.SIGTERM)
    assert select.select([agent.news()], [], [], 30)[0]
    agent.reap()
    assert agent.asked() == [signal.SIGTERM]
    assert agent.asked() == []
    settled = agent.settle()
    assert select.select([settled], [], [], 30)[0]
    os.close(settled)
    assert agent.lost() == ""


def test_an_agent_that_says_nothing_any_more(agent):
    """It is alive for longer than our patience as long as it answers, and lost when it does not."""
    assert not select.select([agent.news()], [], [], 1.5)[0]
    assert agent.silence() < 1.0
    agent._process.send_signal(signal.SIGSTOP)
    assert select.select([agent.news()], [], [], 30)[0]
    assert agent.lost() == "nothing has come from its agent for 1 s"
    assert agent.silence() >= 1.0


def test_signals_that_end_a_job():
    """Workload managers send SIGUSR1 before a job's time is over."""
    assert signal.SIGUSR1 in SIGNALS
    with as_bytes() as wakeup:
        signal.raise_signal(signal.SIGUSR1)
        assert os.read(wakeup, 10) == bytes([signal.SIGUSR1])


def said_by(program):
    """Return what a Python process of its own prints, as a process of a Slurm job."""
    environment = {**os.environ, "SLURM_TASK_PID": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    return done.stdout.strip()


GROUP = """
import os
from mpilaunch.rank import guard
{}
guard.lead_group()
print(os.getpgid(0) == os.getpid())
"""


@pytest.mark.parametrize("is_task", [True, False], ids=["Slurm's task", "a process of a task"])
def test_a_rank_has_a_process_group_of_its_own_under_slurm(is_task):
    """Slurm puts all tasks of a host into one; what is not a task stays where it is."""
    setting = "os.environ['SLURM_TASK_PID'] = str(os.getpid())" if is_task else ""
    assert said_by(GROUP.format(setting)) == str(is_task)


HELPERS = """
import os, signal, time
from mpilaunch.rank.passed_over import pass_over
pass_over(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)

def end_of_a_helper():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(1)
    os.kill(child, signal.SIGTERM)  # most of them have not run yet
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(*{end_of_a_helper() for _ in range(50)}, signal.pthread_sigmask(signal.SIG_BLOCK, ()) or "")
"""

HANDLER = """
import os, signal, sys
from mpilaunch.rank.passed_over import pass_over
pass_over(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
child = os.fork()
if not child:
    signal.raise_signal(signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_rank_leaves_slurms_signal_to_the_launcher():
    """It goes on; helpers that the script has forked end at it, as their pool expects, however early."""
    assert said_by(HELPERS) == str(-signal.SIGTERM)


def test_a_scripts_own_handler_stays_in_its_helpers():
    """Ours is no longer the one that counts."""
    assert said_by(HANDLER) == "3"


def test_one_host_under_two_names_is_told_once_and_shares_its_cores(monkeypatch):
    """Its variables count the ranks of both."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(SshReach, "threads", lambda _, _cores, ranks: ranks)
    first, second = "127.0.0.1", "127.0.0.2"
    where = Placement((first, second), ((first, first, second, second),))
    with ClusterHosts(where, SshReach("ssh", []), 1.0) as cluster:
        sites = cluster.sites("", {})
        told = json.loads(Path(cluster.local.directory, RECORDS, VARIABLES).read_text())
    assert told["OMP_NUM_THREADS"] == "4"
    assert sites.own >= {first, second}


@pytest.mark.parametrize(("cores", "wait"), [(1, "1"), (2, None)])
def test_ranks_of_open_mpi_give_up_a_core_that_they_share(monkeypatch, cores, wait):
    """It would do so by itself if we did not tell it how many ranks a host takes."""
    monkeypatch.setattr("mpilaunch.hosts.cluster.cores_here", lambda: cores)
    where = Placement(("127.0.0.1",), (("127.0.0.1",), ("127.0.0.1",)))
    with ClusterHosts(where, SshReach("ssh", []), 1.0) as cluster:
        cluster.sites("", {})
        told = json.loads(Path(cluster.local.directory, RECORDS, VARIABLES).read_text())
    assert told.get("OMPI_MCA_mpi_yield_when_idle") == wait


@pytest.mark.parametrize("name", ["a..b", ".", 64 * "a"])
def test_what_cannot_be_a_name_of_a_host_is_not_this_one(name):
    """It is left to ssh, which may know it or says that nobody does."""
    assert not is_here(name)


def test_what_cannot_be_a_name_of_a_host_has_no_address():
    """Nor does a survey stumble over it."""
    assert survey.facts(["a..b"], 1).addresses["a..b"] == []


@pytest.mark.parametrize(
    ("ssh", "words"), [("ssh 'x", "--ssh ssh 'x: No closing quotation"), ("", "is empty")]
)
def test_a_command_that_is_none(ssh, words):
    """It is named before any host is reached."""
    with pytest.raises(UsageError, match=words):
        SshReach(ssh, ["agent"])
