"""Who turns sums of gradients into weights, the servers or the workers, with which optimizer."""
