"""Models, tables and texts from what people have: folders, files, packages, a hub id, or nothing."""
