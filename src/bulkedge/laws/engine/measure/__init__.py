"""A resolved density: panels between edges, and the transforms that are read off them."""
