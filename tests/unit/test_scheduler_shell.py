"""The scheduler tells the launcher whom to end, by the pipe of the job's private folder."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from support.scheduler_job import again, asynchronous_job, server, worker

from kvstore_mpi.launcher_events import EVENTS
from kvstore_mpi.scheduler.scheduler import Scheduler
from kvstore_mpi.wire import events as ep

LOOP = SimpleNamespace(send=lambda *_: None, stop=lambda: None)


@pytest.fixture
def told(tmp_path):
    """Return a scheduler that the launcher listens to, and a function that reads what it was told."""
    job = asynchronous_job(clients=2, workers=4)
    job.state.restarting("client1", 0, "SIGKILL", 5.0)
    for rank in (2, 3):
        job.says(worker(rank), again())
    news = tmp_path / "news"
    news.touch()
    os.mkfifo(tmp_path / EVENTS)
    scheduler = Scheduler(job.state, LOOP)
    scheduler.listen(news, tmp_path)
    pipe = os.open(tmp_path / EVENTS, os.O_RDONLY | os.O_NONBLOCK)
    yield scheduler, lambda: [json.loads(line) for line in os.read(pipe, 4096).splitlines()]
    os.close(pipe)


def test_a_client_that_is_silent_is_named_with_its_rank_and_run(told):
    """It may be frozen, and would never end by itself."""
    scheduler, lines = told
    scheduler.on_event(ep.Silent(worker(3), 60.0), 70.0)
    assert lines() == [{"client": 1, "rank": 1, "incarnation": 1, "event": "lost"}]


def test_a_silent_server_is_not(told):
    """Those whom it leaves without answers end the job."""
    scheduler, lines = told
    scheduler.on_event(ep.Silent(server(0), 60.0), 70.0)
    assert lines() == []
