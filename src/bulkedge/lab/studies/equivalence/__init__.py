"""Studies of *equivalence*: the singular values of softmax attention follow a linear Gaussian model."""
