"""Nets that are divided among the ranks of a worker: what parts cost, and how they are trained."""
