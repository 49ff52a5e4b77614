"""Studies of the laws themselves: what every paper stands on."""
