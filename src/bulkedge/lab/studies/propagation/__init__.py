"""Studies of *propagation*: rank collapse, gradients and attention without its gap."""
