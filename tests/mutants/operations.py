"""What a user of several hosts needs around a job: its file, its result, the look at hosts, encryption."""

from __future__ import annotations

from mutants.table import Mutant

_FILE = ("unit/test_launcher_jobfile.py",)
_JUDGE = ("unit/test_launcher_judgement.py",)
_SEALED = ("contract/test_encryption.py",)

MUTANTS = [
    Mutant(
        "of two routes for a name the first counts without a word",
        "kvstore_mpi/hybrid/routes.py",
        "        if force.setdefault(name, route) != route:",
        "        if not force.setdefault(name, route):",
        ("unit/test_hybrid_routes.py",),
    ),
    Mutant(
        "0 is another word for auto",
        "kvstore_mpi/settings.py",
        "if setting.auto and value == AUTO:",
        "if setting.auto and value == AUTO - 1:",
        ("unit/test_launcher_jobspec.py",),
    ),
    Mutant(
        "only rank 0 hears what is wrong with its profile of collectives",
        "kvstore_mpi/tensor_collectives/calibration.py",
        "problem = text.removeprefix(_PROBLEM).decode()",
        'problem = "" if communicator.rank else text.removeprefix(_PROBLEM).decode()',
        ("unit/test_collective_choice.py",),
    ),
    Mutant(
        "a wrong profile of collectives is found by the ranks",
        "launcher/cli.py",
        "check_profile(spec.node.collective_profile)",
        "pass",
        ("unit/test_launcher_outputs.py",),
    ),
    Mutant(
        "dense keys go to servers that are not there",
        "kvstore_mpi/config.py",
        'self.dense != "servers" or self.num_servers > 0,',
        "True,",
        ("unit/test_launcher_jobspec.py",),
    ),
    Mutant(
        "the help says 0 where a setting is auto",
        "launcher/help_text.py",
        'default = "auto" if setting.auto else field.default',
        "default = field.default",
        ("unit/test_launcher_help.py",),
    ),
    Mutant(
        "the nearest option is meant, though another one begins like what was said",
        "launcher/meant.py",
        "not each.startswith(name)",
        "each.startswith(name)",
        ("unit/test_launcher_meant.py",),
    ),
    Mutant(
        "a misspelt option of a command is left to the job",
        "launcher/options.py",
        "self.refuse(unknown, self, job)",
        "pass",
        ("unit/test_launcher_meant.py",),
    ),
    Mutant(
        "a misspelt name of a command is a script and nothing else",
        "launcher/jobspec.py",
        "if not _WORD.fullmatch(name):",
        "if _WORD.fullmatch(name):",
        ("unit/test_launcher_jobspec.py",),
    ),
    Mutant(
        "a job file wins over the command line",
        "launcher/options.py",
        "given = {**file.options, **given}",
        "given = {**given, **file.options}",
        _FILE,
    ),
    Mutant(
        "true is a number",
        "kvstore_mpi/settings.py",
        'if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):',
        "if not isinstance(value, _TYPES[kind]):",
        _FILE,
    ),
    Mutant(
        "a script on the command line does not replace that of the file",
        "launcher/options.py",
        "if file.target is not None and not command:",
        "if file.target is not None:",
        _FILE,
    ),
    Mutant(
        "who has asked for a job hears of no mistake of his own",
        "launcher/outcome/result.py",
        "_Error(type(outcome).__name__, str(outcome))",
        '_Error("InternalError", str(outcome))',
        ("launcher/test_library.py::test_a_result_travels_whole",),
    ),
    Mutant(
        "a host whose name is the loopback is well",
        "launcher/hosts/judgement.py",
        "            if found != [addresses[name]]:",
        "            if not found:",
        _JUDGE,
    ),
    Mutant(
        "a slow link is a wrong clock",
        "launcher/hosts/judgement.py",
        'late if apart - uncertain > CLOCKS_S else ""',
        'late if apart > CLOCKS_S else ""',
        _JUDGE,
    ),
    Mutant(
        "both directions of a connection have one key",
        "kvstore_mpi/transport/records.py",
        "return keys[:_KEY_BYTES], keys[_KEY_BYTES:]",
        "return keys[:_KEY_BYTES], keys[:_KEY_BYTES]",
        _SEALED,
    ),
    Mutant(
        "every record has the same nonce",
        "kvstore_mpi/transport/records.py",
        "        sealed = self._cipher.encrypt(_NONCE.pack(self._number), plain, length)",
        "        sealed = self._cipher.encrypt(_NONCE.pack(0), plain, length)",
        _SEALED,
    ),
    Mutant(
        "what is opened and not read waits for the kernel",
        "kvstore_mpi/transport/sealed.py",
        "while link.socket is not None and _sealed(link).holds_more:",
        "while False:",
        _SEALED,
    ),
    Mutant(
        "who is unreached is not told",
        "launcher/hosts/networks.py",
        "        except ConnectionRefusedError:",
        "        except OSError:",
        ("unit/test_launcher_networks.py",),
    ),
]
