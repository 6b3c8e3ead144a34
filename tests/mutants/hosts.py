"""Jobs on several hosts: which there are, how they are reached, and what managers are given."""

from __future__ import annotations

from mutants.table import Mutant

_ALLOCATION = ("unit/test_launcher_allocation.py",)
_REACH = ("unit/test_launcher_reach.py",)
_RENDER = ("unit/test_launcher_render.py",)
_MPI = ("unit/test_launcher_mpi.py",)

_SECRET = ("unit/test_launcher_job_secret.py",)

MUTANTS = [
    Mutant(
        "a host with two names is two hosts",
        "launcher/plan.py",
        '    if node.num_servers and node.transport == "ipc" and len(hosts) > 1:',
        '    if node.num_servers and node.transport == "ipc" and len(addresses) > 1:',
        _REACH,
    ),
    Mutant(
        "quotas of the groups above a container's are not counted",
        "launcher/cores.py",
        "for folder in (group, *group.parents):",
        "for folder in (group,):",
        ("unit/test_launcher_cores.py",),
    ),
    Mutant(
        "other hosts count the processors that a pod has no time on",
        "launcher/hosts/cluster.py",
        "Facts(host_name(), cores_here(), networks_here())",
        "Facts(host_name(), len(os.sched_getaffinity(0)), networks_here())",
        ("unit/test_launcher_cores.py",),
    ),
    Mutant(
        "a host's name may have a NUL byte",
        "launcher/hosts/hostlist.py",
        "not name.isprintable() or ",
        "",
        ("unit/test_launcher_hostlist.py",),
    ),
    Mutant(
        "the last words are Hydra's advice",
        "launcher/hosts/judgement.py",
        " if not line.startswith(_HYDRAS_ADVICE)]",
        "]",
        ("unit/test_launcher_judgement.py", "unit/test_launcher_doctor.py"),
    ),
    Mutant(
        "a host that comes again has its ranks together",
        "launcher/mpi.py",
        "itertools.groupby(hosts)",
        "itertools.groupby(sorted(hosts))",
        _REACH,
    ),
    Mutant(
        "the daemons of Open MPI start others, for which they have no script",
        "launcher/mpi.py",
        '"plm_rsh_no_tree_spawn", "1"',
        '"plm_rsh_no_tree_spawn", "0"',
        _REACH,
    ),
    Mutant(
        "Open MPI is told of networks to take beside those that the user leaves out",
        "launcher/hosts/networks.py",
        "    if _OPEN_MPI_EXCLUDES not in given:",
        "    if _OPEN_MPI not in given:",
        ("unit/test_launcher_networks.py",),
    ),
    Mutant(
        "segments of jobs that run are removed",
        "launcher/hosts/reaper.py",
        "left = [path for path in left if",
        "left = [path for path in paths if not",
        ("unit/test_launcher_hosts.py",),
    ),
    Mutant(
        "the archive of a host says where its files go",
        "kvstore_mpi/tracing/parts.py",
        "private_files.replacing(folder / PurePath(member.name).name)",
        "private_files.replacing(folder / member.name)",
        ("unit/test_launcher_trace.py",),
    ),
    Mutant(
        "a pod without workers is told nothing of its operator",
        "launcher/hosts/allocation.py",
        "    if wanted == SSH and env.get(POD_VARIABLE):",
        "    if wanted == SLURM and env.get(POD_VARIABLE):",
        _ALLOCATION,
    ),
    Mutant(
        "a job that a rank starts is taken for a copy of the launcher",
        "launcher/hosts/allocation.py",
        '    if variable_of("role") in env:',
        '    if variable_of("role") not in env:',
        _ALLOCATION,
    ),
    Mutant(
        "a secret that a group can read is taken",
        "launcher/job_secret.py",
        "(stat.S_IRWXG | stat.S_IRWXO)",
        "stat.S_IRWXO",
        _SECRET,
    ),
    Mutant(
        "a part of a file is taken for the secret",
        "launcher/job_secret.py",
        "_HEX.fullmatch(text)",
        "_HEX.match(text)",
        _SECRET,
    ),
    Mutant(
        "a job's secret is made although there is one",
        "launcher/job_secret.py",
        "_read(secret_file) if secret_file else make_secret()",
        "make_secret()",
        _SECRET,
    ),
    Mutant(
        "everybody in the pod reads the secret",
        "launcher/rendering/rendered_mpijob.py",
        '"defaultMode": 0o400',
        '"defaultMode": 0o444',
        _RENDER,
    ),
    Mutant(
        "a secret is written beside one that is there",
        "launcher/rendering/render.py",
        "[] if name else [made_secret(job, make_secret())]",
        "[made_secret(job, make_secret())]",
        _RENDER,
    ),
    Mutant(
        "a job is asked for on more hosts than it has processes",
        "launcher/rendering/render.py",
        "if nodes > ranks + shape.num_servers:",
        "if nodes > 9 * ranks:",
        _RENDER,
    ),
    Mutant(
        "pods may have no memory",
        "launcher/rendering/rendered_mpijob.py",
        '_MEMORY = re.compile(r"(?=.*[1-9])',
        '_MEMORY = re.compile(r"(?=.*[0-9])',
        _RENDER,
    ),
    Mutant(
        "a job is asked for on no host",
        "launcher/rendering/render.py",
        "least=1",
        "least=0",
        _RENDER,
    ),
    Mutant(
        "the zeros of a range of hosts are lost",
        "launcher/hosts/allocation.py",
        "str(number).zfill(len(first))",
        "str(number)",
        _ALLOCATION,
    ),
    Mutant(
        "a host that Slurm has not given is taken",
        "launcher/hosts/allocation.py",
        "        if host.name not in there:",
        "        if not there:",
        _ALLOCATION,
    ),
    Mutant(
        "the operator's hostfile is used inside a Slurm job",
        "launcher/hosts/allocation.py",
        "    if not found and wanted in (AUTO, SSH):",
        "    if wanted in (AUTO, SSH):",
        _ALLOCATION,
    ),
    Mutant(
        "srun is not told how ranks meet",
        "launcher/hosts/slurm.py",
        "() if self._is_told_mpi else",
        "() if not self._is_told_mpi else",
        _REACH,
    ),
    Mutant(
        "servers end at Slurm's signal",
        "launcher/plan.py",
        "    if shielded:",
        "    if not shielded:",
        _REACH,
    ),
    Mutant(
        "a helper of a rank cannot be ended under Slurm",
        "launcher/rank/passed_over.py",
        "is _do_nothing:  # or",
        "is not _do_nothing:  # or",
        _REACH,
    ),
    Mutant(
        "an agent keeps its host's signal to itself",
        "launcher/hosts/agent.py",
        "        if signal.SIGTERM in numbers:",
        "        if signal.SIGHUP in numbers:",
        _REACH,
    ),
    Mutant(
        "an agent that answers is taken for dead",
        "launcher/hosts/agent.py",
        "        if isinstance(message, m.Alive):",
        "        if isinstance(message, m.Here):",
        _REACH,
    ),
    Mutant(
        "the script for sbatch does not resume",
        "launcher/rendering/rendered_script.py",
        "start = f'{start} \"${{resume[@]}}\"'",
        "pass",
        _RENDER,
    ),
    Mutant(
        "the last of srun's tasks is left out",
        "launcher/mpi.py",
        "range(int(first), int(last or first) + 1)",
        "range(int(first), max(int(last or first), int(first) + 1))",
        _MPI,
    ),
    Mutant(
        "what has no effect is not said where nothing is started",
        "launcher/cli.py",
        "    told, sites = idle_options(spec, spell), None",
        "    told, sites = [], None",
        ("unit/test_launcher_dry_run.py",),
    ),
    Mutant(
        "sockets of one host join several where nothing is started",
        "launcher/cli.py",
        "            host: f\"(address of {'this host' if tells and is_here(host) else host})\"",
        '            host: "(address)"',
        ("unit/test_launcher_dry_run.py",),
    ),
]
