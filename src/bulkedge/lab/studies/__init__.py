"""Named experiments, a folder for each paper and a file for each figure; ``base.py`` says what one is."""
