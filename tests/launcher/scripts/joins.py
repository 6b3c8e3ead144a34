"""Joins the job without MXNet, and says so."""

import sys

from kvstore_mpi.node import process_worker

worker = process_worker("a test", "sync")
sys.stdout.write(f"joined as {worker.rank} of {worker.num_workers}\n")
worker.close()
