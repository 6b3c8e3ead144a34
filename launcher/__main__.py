"""``python -m mpilaunch`` is the command ``mpilaunch``."""

import sys

from mpilaunch.cli import main

sys.exit(main())
