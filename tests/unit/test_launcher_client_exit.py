"""What is concluded from the ends of one client's ranks; the job's is in ``test_launcher_policy.py``."""

from __future__ import annotations

import signal

import pytest

from mpilaunch.events import Began, Met
from mpilaunch.outcome.client_exit import ClientExit
from mpilaunch.outcome.root_cause import NO_RESOURCES, SAVED
from mpilaunch.rank.record import ExitRecord, RankName

TERMINATED, KILLED = 128 + signal.SIGTERM, 128 + signal.SIGKILL


@pytest.fixture
def client():
    """A client of two ranks."""
    return ClientExit(0, "client0", 2, wrapped=True, host="here")


def record(code, rank=0):
    return ExitRecord(0, rank, "here", 7, code, "", monotonic=1.0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_that_we_have_ended_have_not_failed(client, signum):
    """They leave no record, and are no failure whatever mpiexec ends with."""
    client.signals.add(signum)
    for rank in range(2):
        assert client.rank_over(rank, None, 7, 1.0) is None
    assert not client.failed
    assert client.exited(128 + signum, (128 + signum, KILLED), 6, 2.0) is None


def test_a_rank_that_is_gone_without_our_doing_has_failed(client):
    """Its code is known when its mpiexec ends."""
    assert client.rank_over(1, None, 7, 1.0) is None
    assert client.failed
    failure = client.exited(KILLED, (0, KILLED), 6, 2.0)
    assert (failure.code, failure.when, failure.pid) == (KILLED, 1.0, 7)


def test_ranks_that_go_after_one_that_has_failed_explain_nothing(client):
    """MPI ends them."""
    assert client.rank_over(0, record(3), 7, 1.0).code == 3
    assert client.rank_over(1, None, 8, 1.1) is None
    assert client.exited(3, (3, KILLED), 6, 2.0) is None


def test_to_save_is_no_failure_only_if_it_was_asked_for(client):
    """Another process may use the same exit code for something else."""
    assert client.rank_over(0, record(SAVED), 7, 1.0).code == SAVED
    client.signals.add(signal.SIGUSR1)
    assert client.rank_over(1, record(SAVED, 1), 8, 1.0) is None
    assert client.all_over


@pytest.mark.parametrize(("code", "failed"), [(TERMINATED, False), (KILLED, False), (139, True)])
def test_ranks_that_have_saved_may_be_ended_by_others(client, code, failed):
    """A workload manager that ends the job, before we do; one that crashes then has failed."""
    client.signals.add(signal.SIGUSR1)
    for rank in range(2):
        client.rank_over(rank, record(SAVED, rank), 7, 1.0)
    assert (client.exited(code, (TERMINATED, code), 6, 2.0) is not None) == failed


def test_a_client_that_others_end_before_all_have_saved_has_failed(client):
    """What the second rank was saving is lost."""
    client.signals.add(signal.SIGUSR1)
    client.rank_over(0, record(SAVED), 7, 1.0)
    assert client.exited(TERMINATED, (TERMINATED, TERMINATED), 6, 2.0).code == TERMINATED


@pytest.mark.parametrize(("error", "failed"), [("PeerLostError", False), ("LeaseExpiredError", True)])
def test_whose_rank_only_reports_a_loss_has_time_to_save(client, error, failed):
    """That rank waits to be ended; one that was out itself has ended its client by MPI."""
    lost = ExitRecord(0, 0, "here", 7, 69, error, monotonic=1.0)
    assert client.rank_over(0, lost, 7, 1.0).code == 69
    assert client.failed is failed


@pytest.mark.parametrize(
    ("code", "codes", "failed"),
    [(KILLED, (), False), (255, (), False), (255, (0, 139), True), (139, (), True), (1, (), True)],
)
def test_an_mpiexec_that_is_lost_says_nothing_of_ranks_that_have_ended_well(client, code, codes, failed):
    """Their own records count; a rank that crashes after its record is told by its mpiexec."""
    for rank in range(2):
        client.rank_over(rank, record(0, rank), 7, 1.0)
    assert (client.exited(code, codes, 7, 2.0) is not None) == failed


def test_an_mpiexec_that_is_lost_before_the_ranks_have_ended_is_a_failure(client):
    """One of them has not said that all is well."""
    client.rank_over(0, record(0), 7, 1.0)
    assert client.exited(255, (), 7, 2.0).text == "its mpiexec ended so"


def test_ranks_that_never_joined_have_trained_each_by_itself():
    """Of an executable nobody sees what it does, but that it opens a store; all is well if all have."""
    apart, joined, ended = (ClientExit(0, "client0", 2, wrapped=False, host="here") for _ in range(3))
    apart.joined.add(0)
    failure = apart.exited(0, (0, 0), 6, 2.0)
    assert failure.code
    assert str(RankName(0, 1)) in failure.text
    assert str(RankName(0, 0)) not in failure.text
    joined.joined.update((0, 1))
    assert joined.exited(0, (0, 0), 6, 2.0) is None
    ended.signals.add(signal.SIGTERM)
    assert ended.exited(0, (0, 0), 6, 2.0) is None


def test_the_advice_after_an_end_without_a_record(client):
    """Who leaves by os._exit(0) is told that, and not that the script has failed."""
    assert client.rank_over(0, None, 7, 1.0) is None
    failure = client.exited(KILLED, (0, KILLED), 6, 2.0)
    assert failure.who == "client0.0"
    assert "os._exit, or exit in C code; its own exit code was 0" in failure.text
    assert "end ranks by an exception" in failure.remedy


@pytest.mark.parametrize("first", [0, 1])
def test_who_may_have_been_killed_for_another_is_told_with_it(client, first):
    """Both are seen to go at once, in any order, and Hydra's list says who was killed, but not by whom."""
    for rank in (first, 1 - first):
        assert client.rank_over(rank, None, 7, 1.0) is None
    failure = client.exited(KILLED, (KILLED, 0), 6, 2.0)
    assert (failure.who, failure.code) == ("client0.0", KILLED)
    assert failure.text.startswith("client0.1 ended with exit code 0 and without a record, as by os._exit")
    assert "end ranks by an exception" in failure.remedy


def test_who_has_crashed_was_not_killed_for_another(client):
    """Of a segmentation fault there is nothing to doubt."""
    for rank in (0, 1):
        assert client.rank_over(rank, None, 7, 1.0) is None
    failure = client.exited(11, (0, 139), 6, 2.0)
    assert (failure.who, failure.code, failure.text) == ("client0.1", 139, "")


@pytest.mark.parametrize("codes", [(15, 9), (139, 9), (134, 9), ()])
def test_an_mpi_that_cannot_start_is_not_the_scripts_doing(client, codes):
    """As where /dev/shm cannot be written: MPI ends the process, or crashes, before the script begins."""
    for rank in (0, 1):
        client.reached(Began(RankName(0, rank)))
    for rank in (0, 1):
        assert client.rank_over(rank, None, 7, 1.0) is None
    failure = client.exited(15, codes, 6, 2.0)
    assert "MPI could not start" in failure.text
    assert "/dev/shm" in failure.remedy


@pytest.mark.parametrize(
    ("met", "codes"), [(True, (15, 9)), (True, (139, 9)), (True, ()), (False, (KILLED, 9))]
)
def test_what_ends_a_rank_otherwise_is_no_matter_of_mpi(client, met, codes):
    """It had come out of MPI_Init, or somebody has killed it."""
    for rank in (0, 1):
        client.reached(Began(RankName(0, rank)))
        if met:
            client.reached(Met(RankName(0, rank)))
    for rank in (0, 1):
        assert client.rank_over(rank, None, 7, 1.0) is None
    failure = client.exited(15, codes, 6, 2.0)
    assert failure.code
    assert "MPI could not start" not in failure.text


def test_the_advice_after_the_end_of_mpiexec(client):
    """Its proxy was killed, say: nobody's script has chosen that code."""
    failure = client.exited(255, (), 6, 2.0)
    assert (failure.who, failure.code, failure.text) == ("client0", 255, "its mpiexec ended so")
    assert "hydra_pmi_proxy" in failure.remedy


def test_the_advice_after_a_start_that_has_failed(client):
    """There is no mpiexec to look after."""
    failure = client.exited(NO_RESOURCES, (), 0, 2.0)
    assert (failure.code, failure.text, failure.remedy) == (NO_RESOURCES, "", "")


@pytest.mark.parametrize(("codes", "who"), [((), "client0"), ((KILLED, 0), "client0.0")])
def test_a_rank_that_mpiexec_ends_because_it_starts_no_other_is_not_blamed(codes, who):
    """It may be seen to go first; the exit codes that mpiexec tells are of ranks that it has started."""
    client = ClientExit(0, "client0", 2, wrapped=True, host="login", rank_hosts=("a", "b"))
    client.reached(Began(RankName(0, 0)))
    assert client.rank_over(0, None, 7, 1.0) is None
    failure = client.exited(255, codes, 17, 1.1)
    assert failure.who == who
    assert ("started no rank on b" in failure.text) == (not codes)


@pytest.mark.parametrize(
    ("told", "begun", "fails"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_an_mpiexec_that_is_told_to_end_while_it_starts_is_not_blamed(told, begun, fails):
    """Hydra then fails, as if it could not start its ranks."""
    client = ClientExit(0, "client0", 1, wrapped=True, host="login", rank_hosts=("a",))
    if begun:
        client.reached(Began(RankName(0, 0)))
    if told:
        client.signals.add(signal.SIGUSR1)
    assert (client.exited(255, (), 17, 1.0) is not None) == fails


def test_a_client_of_several_hosts_names_those_where_nothing_has_begun():
    """Its mpiexec says so in words that no two MPIs share."""
    client = ClientExit(0, "client0", 3, wrapped=True, host="login", rank_hosts=("a", "b", "b"))
    client.reached(Began(RankName(0, 0)))
    assert client.missing.startswith("client0.0 on a, client0.1 on b, client0.2 on b has not come out")
    failure = client.exited(255, (), 17, 1.0)
    assert (failure.who, failure.text) == ("client0", "its mpiexec has started no rank on b")
    assert failure.remedy.startswith("is the same MPI at the same path on b,")
    began = ClientExit(0, "client0", 1, wrapped=True, host="login", rank_hosts=("a",))
    began.reached(Began(RankName(0, 0)))
    assert began.exited(255, (), 17, 1.0).text == "its mpiexec ended so"
