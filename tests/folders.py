"""Folders compared."""

import filecmp


def same_files(one, two):
    """Whether two folders hold the same files with the same bytes."""
    names = [{path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (one, two)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, two / name, shallow=False) for name in names[0])
