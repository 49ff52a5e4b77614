"""Figures of *recovery*."""
