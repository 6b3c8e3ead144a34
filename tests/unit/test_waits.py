"""Ranks sleep while they wait where they are on several hosts, unless their network is a fast one."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading

import pytest

from kvstore_mpi.comm.waits import (
    LONGEST_NS,
    SHARE,
    SHARE_OF_SEVERAL,
    USUAL_NS,
    VARIABLE,
    Patience,
    allow_late_timers,
    messages_of_the_library,
    patience_with_several,
    slack_ns,
    sleep_between_hosts,
    sleeps,
)


@pytest.mark.parametrize(
    ("told", "sleeps"),
    [
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}, True),
        ({"PMI_SIZE": "10", "MPI_LOCALNRANKS": "9"}, True),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, False),
        ({"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}, False),
        ({"PMI_SIZE": "4"}, False),  # another launcher's: nobody knows where they are
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "?"}, False),
        ({}, False),
    ],
)
def test_ranks_sleep_if_others_are_elsewhere(tmp_path, told, sleeps):
    environment = dict(told)
    sleep_between_hosts(environment, tmp_path / "infiniband")
    assert environment == ({**told, VARIABLE: "1"} if sleeps else told)


def test_they_poll_where_a_card_is_fast(tmp_path):
    """It answers sooner than a timer."""
    (tmp_path / "mlx5_0").mkdir()
    environment = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}
    sleep_between_hosts(environment, tmp_path)
    assert VARIABLE not in environment


def test_the_user_decides(tmp_path):
    """What is set stays."""
    environment = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1", VARIABLE: "0"}
    sleep_between_hosts(environment, tmp_path / "infiniband")
    assert environment[VARIABLE] == "0"


@pytest.mark.parametrize(
    ("environment", "slept"), [({VARIABLE: "1"}, True), ({VARIABLE: "0"}, False), ({}, False)]
)
def test_what_is_set_says_whether_ranks_sleep(environment, slept):
    assert sleeps(environment) is slept


@pytest.mark.parametrize(
    ("usual_ms", "messages", "share", "microseconds"),
    [
        (0, 4, SHARE, 50),
        (2, 4, SHARE, 50),
        (20, 4, SHARE, 400),
        (9000, 4, SHARE, 1000),
        (20, 4, SHARE_OF_SEVERAL, 600),
        (20, 2, SHARE, 800),
        (30, 6, SHARE, 400),
        (20, 1, SHARE, 1000),
    ],
)
def test_timers_may_be_late_by_a_part_of_the_time_of_a_message(usual_ms, messages, share, microseconds):
    assert round(slack_ns(1e-3 * usual_ms, 1, messages, share) / 1000) == microseconds


@pytest.mark.parametrize(("ranks", "messages"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (8, 6), (9, 8)])
def test_the_library_has_two_messages_each_time_that_half_as_many_ranks_are_left(ranks, messages):
    assert messages_of_the_library(ranks) == messages


@pytest.mark.parametrize(("usual_ms", "megabytes", "microseconds"), [(8, 1, 320), (8, 4, 125), (8, 16, 50)])
def test_timers_come_before_sockets_have_no_more_to_send(usual_ms, megabytes, microseconds):
    """The faster the link, the sooner: in 320 us one of 5 Gbit/s carries 200 KB."""
    assert slack_ns(1e-3 * usual_ms, megabytes << 20, 2) // 1000 == microseconds


def test_only_calls_that_usually_take_long_have_late_timers():
    """By their size: small ones in between have the timers that they always had."""
    clock, told = [0.0], []
    patience = Patience(4, SHARE, told.append, lambda: clock[0])

    def call(num_bytes, seconds):
        with patience.during(num_bytes):
            clock[0] += seconds

    call(1 << 20, 0.1)
    call(8, 0.001)
    assert told == []
    call(1 << 20, 0.1)
    first = slack_ns(0.025, 1 << 20, 4)
    assert told == [first, USUAL_NS]
    call(8, 0.001)
    assert told == [first, USUAL_NS]
    for _ in range(50):
        call(1 << 20, 0.1)
    assert told[-2:] == [LONGEST_NS, USUAL_NS]
    for _ in range(50):
        call(1 << 20, 0.0001)
    told.clear()
    call(1 << 20, 0.0001)
    assert told == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told how late timers may be")
def test_the_calling_thread_alone_has_later_timers():
    get = functools.partial(ctypes.CDLL(None).prctl, 30, 0, 0, 0, 0)
    before, seen = get(), []
    thread = threading.Thread(target=lambda: (allow_late_timers(123_000), seen.append(get())))
    thread.start()
    thread.join()
    assert seen == [123_000]
    assert get() == before


def test_a_call_that_fails_gives_its_timers_back():
    """Whatever the thread does next is waited for as usual."""
    clock, allowed = [0.0], []
    patience = Patience(2, SHARE, allowed.append, lambda: clock[0])
    with patience.during(8):
        clock[0] += 1.0
    assert allowed == []
    with pytest.raises(ValueError, match="lost"), patience.during(8):
        raise ValueError("lost")
    assert allowed == [LONGEST_NS, USUAL_NS]


def test_late_timers_alone_say_nothing_about_how_long_a_call_takes():
    allowed = []
    patience = Patience(2, SHARE, allowed.append)
    for _ in range(50):
        patience.took(8, 1.0)
    with patience.late_timers(8):
        assert allowed == [LONGEST_NS]
    assert allowed == [LONGEST_NS, USUAL_NS]
    assert patience.slack_ns(8) == LONGEST_NS


def test_several_that_are_under_way_are_waited_for_with_more_patience():
    patience = patience_with_several(3)
    patience.took(8, 0.04)
    assert patience.slack_ns(8) == slack_ns(0.01, 8, 3, SHARE_OF_SEVERAL)
