"""What every room uses and that knows nothing of matrices: arrays, domains, errors, estimates, files, threads."""
