"""The whole spectrum of an anisotropic head."""
