"""A scan: what every head of a model does, compared with random heads on the same inputs."""
