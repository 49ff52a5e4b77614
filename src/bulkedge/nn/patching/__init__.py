"""Patches of transformers models: changes of their attention that copy, save, nest and come off again."""
