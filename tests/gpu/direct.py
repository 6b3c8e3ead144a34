"""One rank whose tensors go from device to device; run under mpiexec by ``test_gpu_tensor.py``."""

import sys

import cupy
import numpy as np

from kvstore_mpi.comm.cuda_ipc import CudaIpcCommunicator
from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

SIZES = (1, 5_000, 3_000_001)


def main():
    mpi = MpiCommunicator()
    if sys.argv[1] == "mpi" and not mpi.gpu_aware():
        sys.stdout.write("NOT AWARE\n")
        return
    communicator = CudaIpcCommunicator(mpi) if sys.argv[1] == "ipc" else mpi
    device = mpi.local_rank() % cupy.cuda.runtime.getDeviceCount()
    for name in ("direct", "multiring", "flat-ring"):
        design = DESIGNS[name]._replace(direct=True)
        direct = TensorGroup(communicator, design=design)
        through_host = TensorGroup(MpiCommunicator(), design=design._replace(direct=False))
        numbers = np.random.default_rng(mpi.rank)
        for size in SIZES:
            for operation in ("sum", "mean", "max"):
                host = [numbers.standard_normal(size).astype(np.float32) for _ in range(2)]
                with cupy.cuda.Device(device):
                    vectors = [cupy.asarray(values) for values in host]
                through_host.allreduce(Tensor(host), operation, timeout=60)
                direct.allreduce(Tensor(vectors), operation, timeout=60)
                for one, other in zip(host, vectors):
                    assert one.tobytes() == cupy.asnumpy(other).tobytes(), (name, size, operation)
    sys.stdout.write("SUMMED\n")


if __name__ == "__main__":
    main()
