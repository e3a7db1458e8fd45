"""The pool of worker processes: results by key whoever is first, errors of jobs, and workers that die."""

import os
import time

import pytest

from fedqssl.engines.pool import Pool


def later(shared: int, value: int, seconds: float) -> int:
    time.sleep(seconds)
    return shared + value


def fragile(shared: int, value: int) -> int:
    if value == 1:
        os._exit(9)
    if value == 2:
        raise ZeroDivisionError("of job 2")
    return shared + value


@pytest.fixture(scope="module")
def pool():
    with Pool(100, workers=2) as found:
        yield found


@pytest.mark.parametrize("workers", [1, 2])
def test_results_have_their_keys_in_the_order_of_the_jobs(workers):
    """The first job is the last to end."""
    jobs = {"slow": (1, 0.5), "quick": (2, 0.0), "third": (3, 0.0)}
    ticks = []
    with Pool(100, workers, tick=lambda *given: ticks.append(given)) as pool:
        found = pool.run("sums", later, jobs)
    assert list(found.items()) == [("slow", 101), ("quick", 102), ("third", 103)]
    assert ticks == [("sums", done, 3) for done in range(4)]


def test_results_that_nobody_took_are_not_those_of_the_next_jobs(pool):
    stream = pool.stream(later, {"quick": (1, 0.0), "slow": (2, 0.5)})
    assert next(stream) == ("quick", 101)
    stream.close()
    assert pool.run("sums", later, {"a": (7, 0.0), "b": (8, 0.0)}) == {"a": 107, "b": 108}


def test_what_a_job_raises_is_raised_here(pool):
    with pytest.raises(ZeroDivisionError, match="of job 2") as error:
        pool.run("sums", fragile, {"a": (0,), "b": (2,)})
    assert "in a worker process" in str(error.value.__cause__)


def test_a_worker_that_dies_is_an_error_or_what_the_caller_says_and_is_replaced(pool):
    with pytest.raises(ChildProcessError, match="a worker process died"):
        pool.run("sums", fragile, {"a": (1,)})
    found = dict(pool.stream(fragile, {"a": (0,), "b": (1,), "c": (4,)}, died=lambda key: f"{key} died"))
    assert found == {"a": 100, "b": "b died", "c": 104}
