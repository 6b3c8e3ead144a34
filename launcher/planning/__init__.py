"""How many devices, clients and servers to give to a training, and what has to be measured for that."""
