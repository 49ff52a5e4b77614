"""One thread inside, and as many as before after it: of BLAS, of OpenMP, and of torch's own pool."""

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bulkedge.threads import one_thread


def pools():
    return {each["filepath"]: each["num_threads"] for each in threadpool_info()}


def test_one_thread_inside_and_as_many_as_before_after():
    before = pools()
    with threadpool_limits(2), one_thread():
        assert set(pools().values()) == {1}
    after = pools()
    assert {path: after[path] for path in before} == before


def test_torch_has_one_thread_too_and_gets_its_own_back():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread(["torch"]):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
