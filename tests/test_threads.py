"""One thread inside, and as many as before after it: of BLAS, of OpenMP, and of torch's own pool. Work in order."""

import threading
import time
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from bulkedge.support.threads import in_order, one_thread, stop, thin_products


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


# -- work in order -----------------------------------------------------------------------------------------------------


def blas():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_pieces_side_by_side_have_a_blas_of_one_thread_and_come_in_order():
    meeting, seen, found = threading.Barrier(2, timeout=30), [], []

    def work(number):
        if number < 2:
            meeting.wait()  # two of them are at work at once
        time.sleep(0.01 * (number % 3))
        seen.append(blas())
        return number

    with threadpool_limits(2):
        in_order(work, range(9), found.append)
        assert blas() == {2}
    assert found == list(range(9))
    assert seen == [{1}] * 9


def test_one_thread_of_blas_is_one_piece_at_a_time():
    threads = set()
    with threadpool_limits(1):
        in_order(lambda number: threads.add(threading.get_ident()), range(4), lambda _: None)
    assert threads == {threading.get_ident()}


def test_results_that_wait_are_few():
    """Of a sum over many blocks only a few are held: memory does not grow with their number."""
    begun, most = [], []
    with threadpool_limits(2):
        in_order(begun.append, range(50), lambda _: most.append(len(begun) - len(most)))
    assert max(most) <= 4


def test_errors_are_passed_on_and_threads_given_back():
    with threadpool_limits(2):
        with pytest.raises(ZeroDivisionError):
            in_order(lambda number: 1 / number, [2, 1, 0, 1], lambda _: None)
        assert blas() == {2}
        found = []
        in_order(lambda number: 1 / number, [1, 2, 4], found.append)
    assert found == [1, 0.5, 0.25]


def test_work_within_work_and_beside_it_is_done_one_by_one():
    def inner(number):
        found = []
        in_order(lambda each: each + number, range(3), found.append)
        return found

    outer = []
    with threadpool_limits(2):
        in_order(inner, range(4), outer.append)
        assert blas() == {2}
    assert outer == [[number, number + 1, number + 2] for number in range(4)]


def test_what_numpy_is_told_about_overflows_holds_in_every_thread():
    found = []
    with threadpool_limits(2), np.errstate(over="raise"), pytest.raises(FloatingPointError):
        in_order(np.exp, [np.array([1.0]), np.array([1e4])], found.append)
    with threadpool_limits(2), np.errstate(over="ignore"):
        in_order(np.exp, [np.array([1e4])] * 3, found.append)
    assert np.isinf(found[-1]).all()


def test_thin_products_have_one_thread_within_each_other_too():
    with threadpool_limits(2):
        with thin_products():
            assert blas() == {1}
            with thin_products():
                assert blas() == {1}
            found = []
            in_order(lambda number: (number, threading.get_ident()), range(3), found.append)
            assert found == [(number, threading.get_ident()) for number in range(3)]
            assert blas() == {1}
        assert blas() == {2}


def test_a_blas_that_is_limited_does_not_leave_the_other_unlimited():
    """NumPy and SciPy have libraries of their own, and whoever limits one before the other is loaded limits one."""
    import scipy.linalg  # noqa: F401  # its library is looked for

    paths = [each["filepath"] for each in threadpool_info() if each["user_api"] == "blas"]
    for few in paths:
        with threadpool_limits(2), ThreadpoolController().select(filepath=few).limit(limits=1), thin_products():
            assert blas() == {1}


def test_stopping_ends_workers_before_it_waits_for_them():
    """They may hang: whoever waits first waits for ever."""
    done = []

    class Pool(ProcessPoolExecutor):
        _processes = {1: SimpleNamespace(terminate=lambda: done.append("terminated"))}  # noqa: RUF012 - a stub

        def __init__(self):
            """Start none."""

        def shutdown(self, wait=True, *, cancel_futures=False):  # noqa: FBT002 - as the standard library has it
            done.append((wait, cancel_futures))

    stop(Pool())
    assert done == ["terminated", (True, True)]
