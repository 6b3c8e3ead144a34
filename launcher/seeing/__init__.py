"""Seeing what a running job does: what its processes tell, their stacks, and what is made of both."""
