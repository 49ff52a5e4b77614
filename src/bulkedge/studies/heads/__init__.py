"""Studies of real heads, past the papers: causal, popular, hot and anisotropic ones, and trained models."""
