"""What ``mpilaunch doctor`` says of a machine on which something is wrong."""

from __future__ import annotations

import errno
import importlib.util
import socket
import subprocess

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


def test_a_loopback_interface_that_is_down_is_found(monkeypatch):
    """Its address can be bound all the same."""

    def connect(*_):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    assert "can be reached" in doctor.check_loopback().what
    monkeypatch.setattr(socket, "create_connection", connect)
    finding = doctor.check_loopback()
    assert "Network is unreachable" in finding.what
    assert "ip link set lo up" in finding.remedy
