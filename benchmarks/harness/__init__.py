"""What the benchmarks share: cases, jobs of real processes, the machine's limits, statistics and plots."""
