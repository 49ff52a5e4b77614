"""The loop: what it reports and counts, how it fills the workers, and how it ends what does not end by itself."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from toys import Empty, Fragile, Hanging, Toy

from bulkedge.lab.sweeps import SerialExecutor, Sweep, failures, local_processes, loop, open_sweep, run
from bulkedge.support.progress import listen, track
from bulkedge.support.threads import available_cores, within

TESTS = Path(__file__).parent.parent


def told(sweep, folder, executor=None, **options):
    """What a listener hears of a sweep."""
    heard = []
    with listen(heard.append):
        run(sweep, folder, executor or SerialExecutor(), **options)
    return heard


def test_progress_counts_the_cells_that_are_stored(tmp_path):
    heard = told(Sweep(Fragile(), {"rate": (1, 2, 3)}, repetitions=2), tmp_path)
    assert {event.label for event in heard} == {"cells"}
    assert {event.total for event in heard} == {6}
    counts = [event.done for event in heard]
    assert (counts[0], counts[-1]) == (0, 6)
    assert counts == sorted(counts)
    assert len(set(counts)) > 2, "nothing is told before the end"


def test_progress_of_a_resumed_sweep_counts_what_is_left(tmp_path):
    sweep = Sweep(Fragile(), {"rate": (1, 2, 3)}, repetitions=2)
    run(sweep, tmp_path, SerialExecutor())
    assert [(event.done, event.total) for event in told(sweep, tmp_path)][-1] == (0, 0)
    retried = told(sweep, tmp_path, retry_failed=True)
    assert (retried[0].total, retried[-1].done) == (2, 2)


def test_a_study_that_counts_its_own_steps_does_not_count_as_cells(tmp_path):
    class Counting(Empty):
        def run(self, rng):
            for _ in track(range(5), "steps"):
                pass
            return super().run(rng)

    assert {event.label for event in told(Sweep(Counting(), {}, 2), tmp_path)} == {"cells"}


def test_the_seconds_of_a_cell_are_those_that_it_took():
    slow, quick = (Sweep(Toy(pause=pause), {}).cell((0,)) for pause in (0.3, 0.0))
    first, second = loop.run_cells([slow, quick])
    assert 0.3 <= first.seconds < 2.0
    assert 0.0 < second.seconds < 0.3
    broken = loop.run_cells([Sweep(Fragile(rate=3), {}).cell((0,))])[0]
    assert 0.0 < broken.seconds < 1.0
    assert broken.values is None


class Recording(SerialExecutor):
    """Keeps the sizes of the batches, and pretends that cells took so long."""

    def __init__(self, seconds):
        self.seconds, self.sizes = seconds, []

    def submit(self, fn, /, cells, *rest):
        self.sizes.append(len(cells))
        results = [loop.Result(each.index, each.values, each.failure, self.seconds) for each in fn(cells, *rest)]
        future = Future()
        future.set_result(results)
        return future


@pytest.mark.parametrize(
    ("seconds", "largest", "cells"), [(1.0, 1, 50), (0.01, 10, 200), (1e-9, loop.LARGEST_BATCH, 800)]
)
def test_batches_take_a_tenth_of_a_second(tmp_path, seconds, largest, cells):
    executor = Recording(seconds)
    run(Sweep(Empty(), {}, repetitions=cells), tmp_path, executor)
    assert sum(executor.sizes) == cells
    assert executor.sizes[0] == 1, "nothing is known of the pace at first"
    assert max(executor.sizes) <= largest
    assert max(executor.sizes) >= 0.8 * min(largest, 120)


def test_the_pace_forgets_what_was_long_ago():
    one = loop._Loop(None, None, iter(()), 0, 1)
    for seconds, pace in ((0.0, 0.07 + 0.3e-6), (1.0, 0.7 * (0.07 + 0.3e-6) + 0.3)):
        future = Future()
        future.set_result([loop.Result((0,), None, {}, seconds), loop.Result((1,), None, {}, seconds)])
        one.flying[future] = [None, None]
        one._collect()
        assert one.pace == pytest.approx(pace, rel=1e-12)
    assert len(one.finished) == 4


def test_the_last_cells_are_shared_among_the_workers(tmp_path):
    executor = Recording(1e-9)
    run(Sweep(Empty(), {}, repetitions=100), tmp_path, executor, width=5)
    assert max(executor.sizes) <= 10  # a hundred, over twice as many batches as workers


def test_workers_are_as_many_as_cores_unless_told():
    for workers, expected in ((None, available_cores()), (3, 3)):
        with local_processes(workers) as pool:
            assert pool._max_workers == expected
            assert loop._width_of(pool) == expected
    assert loop._width_of(SerialExecutor()) == 1
    with ThreadPoolExecutor(5) as threads:
        assert loop._width_of(threads) == 5


def test_no_more_than_two_batches_a_worker_are_in_flight(tmp_path):
    flying, most, lock = [0], [0], threading.Lock()

    class Watched(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            with lock:
                flying[0] += 1
                most[0] = max(most[0], flying[0])
            future = super().submit(fn, *args, **kwargs)
            future.add_done_callback(lambda _: flying.__setitem__(0, flying[0] - 1))
            return future

    with Watched(2) as executor:
        run(Sweep(Toy(pause=0.01), {}, repetitions=30), tmp_path, executor)
    assert 2 <= most[0] <= 5  # four in flight, and one that has landed and was not collected yet


# -- timeouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SerialExecutor, lambda: local_processes(2), lambda: ThreadPoolExecutor(2)])
def test_a_cell_that_takes_too_long_has_failed_and_the_rest_goes_on(tmp_path, make):
    sweep = Sweep(Hanging(), {"place": (0, 1, 2, 3)})
    with make() as executor:
        outcome = run(sweep, tmp_path, executor, timeout=2)
    assert (outcome.done, outcome.failed) == (2, 2)
    record = failures(tmp_path)["[1, 0]"]
    assert record["error"] == "TimeoutError: not done after 2 s"
    assert record["parameters"] == {"place": 1}
    assert open_sweep(tmp_path).status.values.ravel().tolist() == [1, 2, 2, 1]


def test_a_timeout_changes_no_number(tmp_path):
    sweep = Sweep(Toy(), {"size": (2, 5)}, repetitions=2)
    run(sweep, tmp_path / "with", SerialExecutor(), timeout=60)
    run(sweep, tmp_path / "without", SerialExecutor())
    one, two = (open_sweep(tmp_path / name)["values"].values for name in ("with", "without"))
    assert np.array_equal(one, two, equal_nan=True)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "soon"])
def test_a_timeout_is_a_time(tmp_path, timeout):
    with pytest.raises(ValueError, match="timeout = "):
        run(Sweep(Empty(), {}), tmp_path, SerialExecutor(), timeout=timeout)


def test_work_within_a_time_ends_when_it_is_told_to():
    running = threading.Event()

    def forever():
        running.set()
        while True:
            time.sleep(0.001)

    before = set(threading.enumerate())
    with pytest.raises(TimeoutError):
        within(0.2, forever)
    assert running.is_set()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_errors_within_a_time_are_those_of_the_work():
    def late():
        raise TimeoutError("the server does not answer")

    assert within(10, lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="the server"):
        within(10, late)


# -- executors that go away --------------------------------------------------------------------------------------------


def test_an_executor_that_gives_up_its_cells_is_broken(tmp_path):
    class Losing(SerialExecutor):
        left = 2

        def submit(self, fn, /, *args, **kwargs):
            self.left -= 1
            if self.left < 0:
                future = Future()
                future.cancel()
                future.set_running_or_notify_cancel()
                return future
            return super().submit(fn, *args, **kwargs)

    sweep = Sweep(Fragile(), {"rate": (1, 2)}, repetitions=2)
    with pytest.raises(BrokenExecutor, match="lost its scheduler"):
        run(sweep, tmp_path, Losing())
    assert (open_sweep(tmp_path).status == 1).sum() == 2


def test_an_executor_that_was_shut_down_is_broken(tmp_path):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(BrokenExecutor, match="takes no cells: RuntimeError"):
        run(Sweep(Empty(), {}), tmp_path, executor)


SCRIPT = """
    import sys
    from concurrent.futures import ProcessPoolExecutor
    from toys import Hanging
    from bulkedge.lab.sweeps import Sweep, local_processes, run
    if __name__ == "__main__":
        with {pool} as pool:
            run(Sweep(Hanging(), {{"place": (0, 1)}}), sys.argv[1], pool)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals to process groups")
@pytest.mark.parametrize("pool", ["local_processes(2)", "ProcessPoolExecutor(2)"])
def test_a_hung_cell_in_the_callers_pool_does_not_survive_ctrl_c(tmp_path, pool):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(pool=pool)))
    command = [sys.executable, str(script), str(tmp_path / "sweep")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while not list((tmp_path / "sweep").glob("results.zarr/value/zarr.json")):
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)  # to the sweep alone: the workers hear nothing of it
        try:
            assert process.wait(timeout=30) != 0
        finally:
            for _ in range(100):
                try:
                    os.killpg(process.pid, 0)
                except ProcessLookupError:
                    break
                time.sleep(0.1)
            else:
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail("workers outlived the sweep")
    assert (open_sweep(tmp_path / "sweep").status == 1).sum() == 1


def test_a_pool_is_left_alone_when_all_is_well(tmp_path):
    with ProcessPoolExecutor(1, initializer=os.getpid) as pool:
        run(Sweep(Empty(), {}, 2), tmp_path, pool)
        assert pool.submit(abs, -3).result() == 3
