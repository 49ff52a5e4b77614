"""Trained models: their embedding tables beside the laws of random ones."""

from bulkedge.models.tables import TableFit, TableSpectrum, table_spectrum
from bulkedge.models.weights import TABLES, embedding_table

__all__ = ["TABLES", "TableFit", "TableSpectrum", "embedding_table", "table_spectrum"]
