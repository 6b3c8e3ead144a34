"""What ``mpilaunch doctor`` says of a machine that is too busy to answer."""

from __future__ import annotations

import importlib.util
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
