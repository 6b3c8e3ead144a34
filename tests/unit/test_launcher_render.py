"""What ``mpilaunch render`` writes, and what it refuses to."""

from __future__ import annotations

import io
import shlex
import subprocess
from pathlib import Path

import pytest
from support.mpijob_schema import MPIJOB

from kvstore_mpi.errors import UsageError
from mpilaunch.mpi import PYTHON
from mpilaunch.rendering.render import run

yaml = pytest.importorskip("yaml", reason="the extra kubernetes installs it")
jsonschema = pytest.importorskip("jsonschema", reason="the extra dev installs it")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra dev installs it")

KUBERNETES_VERSION = "1.30"
SCRIPT = str(Path(__file__).parents[2] / "examples/digits_gluon.py")
JOB_FILE = str(Path(__file__).parents[2] / "pyproject.toml")
POD = ("--image", "registry/train:1", "--cpus", "4", "--memory", "8Gi")


def render(*arguments):
    out = io.StringIO()
    assert run([str(each) for each in arguments], out) == 0
    return out.getvalue()


def test_a_script_for_slurm():
    """Nodes, tasks, time, and a signal that leaves the ranks their grace; mpilaunch itself hears it."""
    job = (
        "--nodes",
        4,
        "--time",
        "1:30:00",
        "--grace",
        "40.5",
        "--clients",
        2,
        "--servers",
        1,
        "--workers",
        6,
    )
    said = render("--backend", "slurm", *job, SCRIPT, "--epochs", "a b").splitlines()
    options = {line.removeprefix("#SBATCH --") for line in said if line.startswith("#SBATCH")}
    wanted = {"job-name=digits_gluon", "nodes=4", "ntasks-per-node=2", "time=1:30:00", "signal=B:USR1@71"}
    assert wanted | {"no-requeue"} <= options
    assert said[0] == "#!/bin/bash"
    own = "--backend slurm --grace 40.5 --clients 2 --servers 1 --workers 6"
    assert said[-1].startswith(f"exec {shlex.join(PYTHON)} -m mpilaunch ")
    assert said[-1].endswith(f" -m mpilaunch {own} {SCRIPT} --epochs 'a b'")


FAKE = """#!/bin/bash
case $1 in
requeue) echo "REQUEUED $2" ;;
*)
    trap 'echo "HEARD"; exit 75' USR1
    echo "STARTED $*"
    for _ in {1..600}; do sleep 0.1; done
    ;;
esac
"""


@pytest.mark.parametrize("part", ["", "model-rank-1"])
@pytest.mark.parametrize("folder", ["saved", "sa[1] $b"])
@pytest.mark.parametrize("restarted", [False, True], ids=["the first time", "again"])
def test_a_script_that_goes_on(tmp_path, restarted, folder, part):
    """It passes the signal on, goes into the queue again, and resumes where there is a snapshot."""
    (tmp_path / folder / part).mkdir(parents=True)
    job = ("--clients", 1, "--servers", 1, "--snapshot-dir", tmp_path / folder)
    text = render("--backend", "slurm", *job, "-m", "train.it", "x")
    assert "#SBATCH --requeue" in text
    (start,) = (line for line in text.splitlines() if line.endswith("&"))
    python = start.partition(" -m mpilaunch")[0]
    (tmp_path / "job.sh").write_text(text.replace(python, str(tmp_path / "scontrol")))
    (tmp_path / "scontrol").write_text(FAKE)
    (tmp_path / "scontrol").chmod(0o755)
    if restarted:
        (tmp_path / folder / part / "server0-of-1.snapshot").touch()
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_RESTART_COUNT": str(int(restarted)),
        "SLURM_JOB_ID": "5",
    }
    with subprocess.Popen(
        ["/bin/bash", tmp_path / "job.sh"], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        started = process.stdout.readline()
        process.send_signal(10)
        rest = process.stdout.read()
        assert process.wait(30) == 75
    assert (" --resume " in started) == restarted
    assert started.endswith("-m train.it x\n")
    assert rest == "HEARD\nREQUEUED 5\n"


def test_what_a_job_file_says(tmp_path):
    """The script is asked for what the job will have; its own command line names the file."""
    file = tmp_path / "job.toml"
    file.write_text(f"workers = 8\ngrace = 100\nscript = '{SCRIPT}'\nargs = ['--epochs', 3]\n")
    said = render("--backend", "slurm", "--nodes", 2, "--config", file).splitlines()
    assert {"#SBATCH --ntasks-per-node=4", "#SBATCH --signal=B:USR1@130"} <= {*said}
    assert "#SBATCH --job-name=digits_gluon" in said
    assert said[-1].endswith(f"--config {file}")


def test_what_kubernetes_would_replace():
    """A dollar sign is one for the script, and a Service's name begins with a letter."""
    _, job = render_mpijob("--name", "1a", "/a.py", "$(HOME) $$")
    assert pods(job)[0]["containers"][0]["command"][-1] == "$$(HOME) $$$$"
    assert job["metadata"]["name"] == "job-1a"


def render_mpijob(*arguments):
    """Return the documents before the MPIJob, and it."""
    *before, job = yaml.safe_load_all(render("--backend", "kubernetes", *POD, *arguments))
    return before, job


def pods(job):
    """Return the two pods of an MPIJob."""
    replicas = job["spec"]["mpiReplicaSpecs"]
    return [replicas[name]["template"]["spec"] for name in ("Launcher", "Worker")]


def test_an_mpijob():
    """The operator's schema takes it and Kubernetes' own its pods; servers and ranks are on its workers."""
    shape = ("--nodes", 2, "--clients", 2, "--servers", 1, "--workers", 4)
    _, job = render_mpijob(*shape, "/app/train.py", "--lr", "0.1")
    jsonschema.validate(job, MPIJOB)
    launcher, worker = pods(job)
    for spec in (launcher, worker):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
    assert job["metadata"]["name"] == "train"
    assert job["spec"]["slotsPerWorker"] == 2
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    words = launcher["containers"][0]["command"]
    assert words[:3] == ["mpilaunch", "--backend", "ssh"]
    assert words[5:7] == ["--secret-file", "/etc/kvstore_mpi/secret"]
    assert words[7:] == [
        "--clients",
        "2",
        "--servers",
        "1",
        "--workers",
        "4",
        "/app/train.py",
        "--lr",
        "0.1",
    ]
    assert worker["containers"][0]["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"}
    assert worker["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": 22}
    assert launcher["terminationGracePeriodSeconds"] > 25  # the grace


@pytest.mark.parametrize("memory", ["8Pi", "8000k", "1.5G", "100Ki", "1048576"])
def test_memory_as_kubernetes_writes_it(memory):
    """Decimal ones begin with a small k, binary ones with a capital."""
    _, job = render_mpijob("--memory", memory, "/app/train.py")
    assert pods(job)[1]["containers"][0]["resources"]["limits"]["memory"] == memory


@pytest.mark.parametrize(
    "image",
    [
        "train",
        "me/train:v1.2_3",
        "localhost:5000/a/b__c-d",
        "Host.io/x",
        f"ghcr.io/a/b:1@sha256:{64 * 'a'}",
    ],
)
def test_names_of_images(image):
    """With and without a registry, its port, a tag and a digest."""
    _, job = render_mpijob("--image", image, "/app/train.py")
    assert {pod["containers"][0]["image"] for pod in pods(job)} == {image}


def test_servers_may_have_hosts_of_their_own():
    """As many hosts as there are ranks and servers have something to do."""
    said = render("--backend", "slurm", "--nodes", 4, "--workers", 2, "--servers", 2, SCRIPT)
    assert "#SBATCH --nodes=4" in said


def mounted_secret(job):
    """Return what the launcher's pod says of its Secret; the workers' have none."""
    launcher, worker = pods(job)
    assert not any("secret" in volume for volume in worker["volumes"])
    ((volume, mount),) = zip(launcher["volumes"], launcher["containers"][0]["volumeMounts"])
    assert mount == {"name": volume["name"], "mountPath": "/etc/kvstore_mpi", "readOnly": True}
    return volume["secret"]


def test_a_secret_that_is_made():
    """Another one for each job; only the launcher sees it, in a file that its owner alone may read."""
    values = set()
    for _ in range(2):
        (secret,), job = render_mpijob("/app/train.py")
        kubernetes_validate.validate(secret, KUBERNETES_VERSION, strict=True)
        assert secret["kind"] == "Secret"
        assert mounted_secret(job) == {"secretName": secret["metadata"]["name"], "defaultMode": 0o400}
        (value,) = secret["stringData"].values()
        assert list(secret["stringData"]) == ["secret"]  # the file's name in the folder
        assert len(bytes.fromhex(value)) == 32
        assert value not in str(job)
        values.add(value)
    assert len(values) == 2


def test_a_secret_that_is_there():
    """Nothing secret is written."""
    made, job = render_mpijob("--secret-name", "kept.elsewhere", "/app/train.py")
    assert made == []
    assert mounted_secret(job)["secretName"] == "kept.elsewhere"


def test_the_schemas_notice_mistakes():
    """A word that is written otherwise, and a field of a pod that there is not."""
    _, job = render_mpijob("/app/train.py")
    job["spec"]["mpiImplementation"] = "mpich"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, MPIJOB)
    _, spec = pods(job)
    spec["containers"][0]["comand"] = []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((SCRIPT,), "--backend slurm or --backend kubernetes"),
        (("--backend", "slurm", "--time", "1 day", SCRIPT), "--time '1 day'"),
        (("--backend", "slurm", "--nodes", 0, SCRIPT), "--nodes must be at least 1, not 0"),
        (("--backend", "slurm", "--clients", 0, SCRIPT), "--clients must be at least 1, not 0"),
        (("--backend", "slurm", "--image", "x", SCRIPT), "--image is for --backend kubernetes"),
        (("--backend", "slurm", "--hosts", "a", SCRIPT), "leave out --hosts"),
        (("--backend", "slurm", "--resume", SCRIPT), "--resume needs --snapshot-dir"),
        (("--backend", "slurm", "nosuch.py"), "'nosuch.py' does not exist"),
        (("--backend", "kubernetes", "--cpus", "4", "--memory", "8Gi", "/a.py"), "--image is needed"),
        (("--backend", "kubernetes", *POD, "--time", "5", "/a.py"), "--time is for --backend slurm"),
        (("--backend", "kubernetes", *POD, "--cpus", "four", "/a.py"), "--cpus 'four'"),
        (("--backend", "kubernetes", *POD, "--memory", "8GB", "/a.py"), "--memory '8GB'"),
        (("--backend", "kubernetes", *POD, "--memory", "8K", "/a.py"), "--memory '8K'"),
        (("--backend", "kubernetes", *POD, "--memory", "0", "/a.py"), "--memory '0' is no size above 0"),
        (("--backend", "kubernetes", *POD, "--cpus", "0.0", "/a.py"), "--cpus '0.0' is no number of proc"),
        *(
            (("--backend", "kubernetes", *POD, "--image", image, "/a.py"), f"--image {image!r} is no name")
            for image in ("bad image name", "Train", "train:", "a//b", "train-", "train@sha256:12")
        ),
        (
            ("--backend", "slurm", "--nodes", 8, "--workers", 2, SCRIPT),
            "--nodes 8 is more than there is to",
        ),
        (("--backend", "slurm", "--secret-name", "x", SCRIPT), "--secret-name is for --backend kubernetes"),
        (("--backend", "kubernetes", *POD, "--secret-name", "A_b", "/a.py"), "--secret-name 'A_b'"),
        (("--backend", "kubernetes", *POD, "--secret-file", "/f", "/a.py"), "leave out --secret-file"),
        (("--backend", "kubernetes", *POD, "--name", "_", "/a.py"), "a name with letters"),
        (("--backend", "slurm", "--name", "a\nb", SCRIPT), "has a line break"),
        (("--backend", "kubernetes", *POD, "--config", JOB_FILE, "/a.py"), "pods do not have these files"),
    ],
)
def test_what_is_refused(arguments, words):
    """Before it is in a queue."""
    with pytest.raises(UsageError) as caught:
        render(*arguments)
    assert words in str(caught.value)
