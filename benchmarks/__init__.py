"""Speed and accuracy against peers, measured in the same run; ``python -m benchmarks`` writes the docs' tables."""
