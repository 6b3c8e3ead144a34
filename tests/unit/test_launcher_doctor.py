"""What ``mpilaunch doctor`` says of a machine on which something is wrong."""

from __future__ import annotations

import errno
import importlib.util
import shlex
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mpilaunch import doctor


def test_an_import_that_takes_too_long_is_a_finding(monkeypatch):
    """And no traceback."""

    def run(argv, **options):
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(subprocess, "run", run)
    finding = doctor.check_mxnet()
    assert finding.what == "does not import in 300 s"
    assert "import mxnet" in finding.remedy


def test_the_version_is_none_of_the_warnings(monkeypatch):
    """Which an import may write as well."""

    def run(argv, **_):
        return subprocess.CompletedProcess(argv, 0, "1.9.1\n", "DeprecationWarning: of distutils\n")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(subprocess, "run", run)
    assert doctor.check_mxnet().what.startswith("1.9.1 with NumPy ")


@pytest.mark.parametrize(
    ("version", "fails"), [((3, 11, 9), True), ((3, 12, 0), False), ((3, 13, 1), False)]
)
def test_no_mxnet_is_well_where_there_is_none_to_install(monkeypatch, version, fails):
    """What nobody can do does not make the check fail."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "version_info", version)
    finding = doctor.check_mxnet()
    assert finding.what.startswith("not installed")
    assert bool(finding.remedy) == fails


def test_a_loopback_interface_that_is_down_is_found(monkeypatch):
    """Its address can be bound all the same."""

    def connect(*_):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    assert "can be reached" in doctor.check_loopback().what
    monkeypatch.setattr(socket, "create_connection", connect)
    finding = doctor.check_loopback()
    assert "Network is unreachable" in finding.what
    assert "ip link set lo up" in finding.remedy


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_to_be_tried_by_hand_can_be_pasted(monkeypatch, ends):
    """The shell makes the same words of it; what was said last stands before Hydra's advice."""
    ran = []

    def run(argv, **options):
        ran.append(argv)
        if not ends:
            raise subprocess.TimeoutExpired(argv, options["timeout"])
        banner = "EXIT STRING: Segmentation fault\nPlease see the FAQ page for debugging suggestions\n"
        return subprocess.CompletedProcess(argv, 11, banner, "")

    flavour = SimpleNamespace(options=("-launcher", "fork"), env=())
    mpi = SimpleNamespace(mpiexec="/a b/mpiexec", flavour=flavour, version="MPICH 5", library="libmpi.so")
    monkeypatch.setattr(doctor, "find_mpi", lambda: mpi)
    monkeypatch.setattr(subprocess, "run", run)
    finding = doctor.check_mpi()
    assert finding.what.endswith("exit code 11, EXIT STRING: Segmentation fault" if ends else "in 60 s")
    assert shlex.split(finding.remedy.partition("by hand: ")[2]) == ran[0]
