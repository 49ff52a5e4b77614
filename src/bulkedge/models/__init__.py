"""Trained models: the weights that packages carry."""

from bulkedge.models.weights import TABLES, embedding_table

__all__ = ["TABLES", "embedding_table"]
