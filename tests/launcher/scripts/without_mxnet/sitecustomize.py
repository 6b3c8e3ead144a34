"""On PYTHONPATH, makes an installation look as if mxnet were not there: its import takes seconds."""

import sys

sys.modules["mxnet"] = None
