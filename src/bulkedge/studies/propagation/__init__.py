"""*propagation*: Nait Saada, Naderi and Tanner, Mind the Gap (arXiv 2410.07799)."""
