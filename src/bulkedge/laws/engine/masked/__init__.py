"""Masked sums of low-rank terms: two Riccati equations, one from each end."""
