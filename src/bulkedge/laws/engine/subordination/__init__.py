"""Free convolutions as fixed points in the upper half-plane: support, edges, bulk."""
