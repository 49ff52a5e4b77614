"""Studies of real heads, past the papers: causal, popular, sharp and anisotropic ones, and trained models."""
