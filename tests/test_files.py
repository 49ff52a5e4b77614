"""Folders are removed whole, also while threads of an interrupted call still write into them."""

import threading

import pytest

from bulkedge.support.files import remove_folder


@pytest.mark.parametrize("seed", range(5))
def test_a_folder_is_removed_while_files_come_and_go_in_it(tmp_path, seed):
    folder = tmp_path / "draft" / "data"
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number}.partial").touch()

    def finish():
        for number in range(seed, 200):
            try:
                (folder / f"{number}.partial").rename(folder / f"{number}")
            except FileNotFoundError:
                continue

    writer = threading.Thread(target=finish)
    writer.start()
    remove_folder(folder.parent)
    writer.join()
    assert not folder.parent.exists()


def test_what_is_not_there_is_no_fault_and_what_is_no_folder_is(tmp_path):
    remove_folder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        remove_folder(tmp_path / "file")
