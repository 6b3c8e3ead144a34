"""mpilaunch, whose servers can be told to be stuck."""

import os
import sys
from pathlib import Path

from mpilaunch.cli import main

if __name__ == "__main__":
    folder = Path(__file__).with_name("hangs")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    sys.exit(main())
