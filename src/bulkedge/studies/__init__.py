"""Named experiments, a folder for each paper and a file for each figure; :mod:`bulkedge.studies.base` says what one is."""
