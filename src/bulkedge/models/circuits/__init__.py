"""The circuits of every head, from the weights alone."""
