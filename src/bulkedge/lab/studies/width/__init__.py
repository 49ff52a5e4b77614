"""Studies of *width*: one attention layer at infinite width, and stacks of them (ours)."""
