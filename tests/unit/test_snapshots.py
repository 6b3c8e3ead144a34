"""Files of snapshots, and what a server takes up from one."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.crafted_files import change_at_random, craft
from support.saving_server import Server

from kvstore_mpi.errors import ConfigurationError, MismatchError, NotSavedError
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.server import snapshot_file as file
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.server.snapshot_sets import folder_of_part, path_of
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec

SPEC = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5), params={"momentum": 0.9})


@pytest.fixture
def trained(tmp_path):
    """A server with a snapshot of two pushes of client 1, which has been restarted once."""
    server = Server(tmp_path)
    server.give(0, SPEC.to_dict())
    server.create()
    server.state.begins(NodeId(Role.WORKER, 1), 1)
    server.push(1, 1)
    server.push(1, 2)
    server.state.keys.set_hyper(0, HyperParameters(lr=0.25))
    server.snapshots.save(server.state, server.store)
    return server


def test_a_restarted_server_goes_on_where_the_snapshot_was(trained, tmp_path):
    """Values, the optimizer with its state and newest numbers, and what each client has pushed."""
    again = Server(tmp_path)
    assert again.restore()
    assert np.array_equal(again.value, trained.value)
    assert again.state.incarnations == {1: 1}
    assert again.push(1, 2) == []
    assert np.array_equal(again.value, trained.value)
    for server in (trained, again):
        server.push(1, 3)
    assert np.array_equal(again.value, trained.value)
    assert again.state.keys.unit(0, 0).updates == trained.state.keys.unit(0, 0).updates == 3


def test_a_resumed_job_counts_pushes_from_the_start(trained, tmp_path):
    """Its clients are new; the number of updates, of which schedules know, goes on."""
    again = Server(tmp_path, job="b")
    assert again.restore(resume=True)
    assert again.state.incarnations == {}
    assert again.push(1, 1) != []
    assert again.state.keys.unit(0, 0).updates == 3


def test_a_snapshot_of_another_job_counts_as_none(trained, tmp_path):
    """Nothing of it creeps into a server that is started again."""
    assert not Server(tmp_path, job="b").restore()


def test_a_job_that_begins_keeps_what_another_has_saved(trained, tmp_path):
    """Who has forgotten --resume is told so, and loses nothing; what this job has saved is no hindrance."""
    saved = path_of(tmp_path, 0, 1).read_bytes()
    with pytest.raises(ConfigurationError, match=r"is of another job, .* go on from it with --resume"):
        Server(tmp_path, job="b").restore(first=True)
    assert path_of(tmp_path, 0, 1).read_bytes() == saved
    assert not Server(tmp_path).restore(first=True)
    with pytest.raises(ConfigurationError, match=r"server0-of-1\.snapshot is of another job"):
        Server(tmp_path, job="b", servers=2).restore(first=True)
    path_of(tmp_path, 0, 1).unlink()
    assert not Server(tmp_path, job="b").restore(first=True)


def test_a_snapshot_must_fit(trained, tmp_path):
    """A key that has another shape or name is named."""
    again = Server(tmp_path, job="b")
    again.restore(resume=True)
    (failure,) = again.create(shape=(2, 4))
    assert "'w' (8,) float32" in failure.message.text
    (failure,) = again.create(key="v")
    assert "'v'" in failure.message.text


def test_a_snapshot_of_another_kind_of_job_is_refused(trained, tmp_path):
    """Rounds that wait for all and such that do not, clients of one worker and of two: not a resumption."""
    with pytest.raises(ConfigurationError, match=r"2 clients of 1 workers .* 2 clients of 2 workers"):
        Server(tmp_path, job="b", size=2).restore(resume=True, first=True)
    again = Server(tmp_path, job="b")
    again.restore(resume=True)
    (failure,) = again.create(mode="sync")
    assert failure.message.error == MismatchError.__name__
    assert "in a store of the mode sync here, but the snapshot has it in one of the mode async" in (
        failure.message.text
    )


def test_a_restarted_server_needs_the_layout_that_it_had(trained, tmp_path):
    """Counts and states would be those of other slices."""
    craft(path_of(tmp_path, 0, 1), lambda header: header["layout"].__setitem__(4, 6))
    with pytest.raises(
        ConfigurationError, match=r"slices of 6 elements, and this is .* slices of 5 elements"
    ):
        Server(tmp_path).restore()


def test_only_who_begins_needs_a_snapshot(tmp_path):
    """A server that is started again in a job that was resumed is given the workers' values."""
    with pytest.raises(ConfigurationError, match="there is no snapshot"):
        Server(tmp_path).restore(resume=True, first=True)
    assert not Server(tmp_path).restore(resume=True)


def test_snapshots_of_a_model_in_parts_are_not_overlooked(trained, tmp_path):
    """Its job had --model-parallel, which whoever goes on from it has forgotten."""
    above = tmp_path / "above"
    for part in range(3):
        folder = folder_of_part(str(above), part)
        folder.mkdir(parents=True)
        if part < 2:  # the third has been made by a job of three parts, which found nothing in it either
            shutil.copy(path_of(str(tmp_path), 0, 1), folder)
    with pytest.raises(ConfigurationError, match=r"a model in 2 parts, .*/model-rank-0 .*-parallel 2"):
        Server(above).restore(resume=True, first=True)


def test_a_resumed_key_is_adopted(trained, tmp_path):
    """Rank 0's init is answered by the value of the snapshot."""
    again = Server(tmp_path, job="b")
    again.restore(resume=True)
    assert [answer.entry[:3] for answer in again.create()] == [(0, 0, 5), (0, 5, 8)]


@pytest.mark.parametrize("keep", [0, 4, 20, -4, -1])
def test_a_file_that_is_cut_off_is_refused(trained, tmp_path, keep):
    """With its name, and never half."""
    path = path_of(tmp_path, 0, 1)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigurationError, match=str(path)):
        Server(tmp_path).restore()


def test_a_file_that_is_cut_off_while_it_is_open_is_refused(trained, tmp_path):
    """It was whole when it was opened; keys are read later, when the script creates them."""
    path = path_of(tmp_path, 0, 1)
    with contextlib.closing(file.open_chain(path)) as chain:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ConfigurationError, match=f"{path}.* has become shorter"):
            chain.load()


def test_a_file_that_is_changed_or_foreign_is_refused(trained, tmp_path):
    """One bit is enough; and so is a file of somebody else."""
    path = path_of(tmp_path, 0, 1)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match="damaged"):
        Server(tmp_path).restore()
    path.write_bytes(b"KVMPIsn1" + path.read_bytes()[8:])
    with pytest.raises(ConfigurationError, match="is of version '1', and this kvstore_mpi reads '2' alone"):
        Server(tmp_path).restore()
    path.write_bytes(b"PK\3\4 something else, and long enough to be read")
    with pytest.raises(ConfigurationError, match="not a snapshot"):
        Server(tmp_path).restore()
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"not a snapshot .*\(0 bytes\); remove it to start anew"):
        Server(tmp_path).restore()


@pytest.mark.parametrize(
    "reason",
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError("12 GiB"), r"MemoryError\('12 GiB'\)"),
    ],
    ids=["disk", "memory"],
)
def test_a_snapshot_that_cannot_be_written_leaves_the_last_one(
    trained, tmp_path, monkeypatch, caplog, reason
):
    """The disk is full, say: training goes on, and people are told once; at the end it is a failure."""
    before = path_of(tmp_path, 0, 1).read_bytes()

    error, words = reason

    def full(descriptor):
        raise error

    monkeypatch.setattr(file.os, "fsync", full)
    for now in (20.0, 40.0):
        trained.snapshots.save_if_due(now, trained.state, trained.store)
        trained.snapshots.go_on()
        trained.snapshots._writer.join()
    why = f"server0: the last snapshot could not be written to {path_of(tmp_path, 0, 1)}: {words}"
    with pytest.raises(NotSavedError, match=f"{why}; that before it is whole "):
        trained.snapshots.save(trained.state, trained.store)
    assert trained.snapshots.failing
    assert path_of(tmp_path, 0, 1).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["server0-of-1.snapshot"]
    [told] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.endswith("training goes on")
    path_of(tmp_path, 0, 1).unlink()
    with pytest.raises(NotSavedError, match=f"{words}; there is no whole one before it"):
        trained.snapshots.save(trained.state, trained.store)
    monkeypatch.undo()
    trained.snapshots.save(trained.state, trained.store)
    assert not trained.snapshots.failing


def test_a_server_that_has_no_part_of_any_key_saves_as_well(tmp_path):
    """Or the others' snapshots would be no whole set, and the job could not be resumed."""
    server = Server(tmp_path)
    server.snapshots.save(server.state, server.store)
    assert path_of(tmp_path, 0, 1).exists()


def test_a_snapshot_is_its_users_alone(trained, tmp_path):
    """It holds the model."""
    assert stat.S_IMODE(path_of(tmp_path, 0, 1).stat().st_mode) == 0o600


def test_what_a_killed_server_has_left_half_is_removed(trained, tmp_path):
    """By the next one that writes."""
    (tmp_path / "server0-of-1.snapshot.0123.draft").touch()
    trained.snapshots.save(trained.state, trained.store)
    assert [path.name for path in tmp_path.iterdir()] == ["server0-of-1.snapshot"]


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (os.mkfifo, "not an ordinary file"),
        (os.mkdir, "not an ordinary file"),
        (lambda path: path.symlink_to("/dev/zero"), "symbolic link"),
    ],
    ids=["pipe", "folder", "link"],
)
def test_what_is_no_file_is_refused_at_once(tmp_path, put, words):
    """A named pipe would be waited for, until whoever waits for this server gives up."""
    put(path_of(tmp_path, 0, 1))
    with pytest.raises(ConfigurationError, match=words):
        Server(tmp_path).restore()


# --- files that are whole, and are not what a server can have written ---


def key_of(header):
    return header["keys"][0]


def array(index, field, value):
    return lambda header: key_of(header)["arrays"][index].update({field: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (array(0, "dtype", "object"), "value is not 8 elements of float32"),
        (array(0, "dtype", "float64"), "value is not 8 elements of float32"),
        (array(0, "size", 9), "value is not 8 elements of float32"),
        (array(0, "size", -1), "value is not 8 elements of float32"),
        (array(1, "dtype", "object"), "state is 5 elements of 'object'"),
        (array(1, "size", -1), "state is -1 elements"),
        (array(1, "size", 6), "bytes of arrays are there instead of"),
        (array(1, "index", 1), "state 1 at 0 is not the next one"),
        (array(1, "dtype", "int32"), "not one of its optimizer"),
        (array(1, "lo", 5), "not the next one"),
        (lambda header: key_of(header)["spec"].update(dtype="object"), "type is 'object'"),
        (lambda header: key_of(header).update(mode="x"), "mode is 'x'"),
        (lambda header: key_of(header)["spec"].update(shape=[4]), "elements are 0 to 8"),
        (lambda header: key_of(header).update(shard=[0, 9]), "elements are 0 to 9"),
        (lambda header: key_of(header).update(units=[]), "0 parts that were updated together, and 2 here"),
        (lambda header: key_of(header)["units"][0].update(pushed=[1]), "pushes of 1 clients"),
        (lambda header: key_of(header)["units"][0].update(updates=-1), "count is negative"),
        (lambda header: header["keys"].append(key_of(header)), "two keys have one number"),
        (lambda header: header["specs"].clear(), "not one of its optimizer"),
        (lambda header: header["specs"][0].update(name="nosuch"), "have no optimizer 'nosuch'"),
        (lambda header: header["specs"][0].update(hyper=3), "not the description of an optimizer"),
        (lambda header: header.update(layout=[0, 1]), "another version"),
    ],
)
def test_a_crafted_file_is_refused(trained, tmp_path, change, words):
    """With its name, and what is wrong, before anything of it is used."""
    path = path_of(tmp_path, 0, 1)
    craft(path, change)
    with pytest.raises(ConfigurationError, match=words) as caught:
        Server(tmp_path).restore()
    assert str(path) in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_a_file_says_there_is_no_other_error(trained, tmp_path, data):
    """A server takes it up or says what is wrong."""
    path = path_of(tmp_path, 0, 1)
    trained.snapshots.save(trained.state, trained.store)

    craft(path, change_at_random(data))
    try:
        Server(tmp_path).restore(resume=True)
    except ConfigurationError as error:
        assert str(path) in str(error)  # noqa: PT017  there need not be one


# --- when ---


def test_snapshots_are_taken_in_time(tmp_path):
    """The first one when there is something to save, the next after the interval or new keys."""
    server = Server(tmp_path, every=10.0)
    path = path_of(tmp_path, 0, 1)

    def saved(now):
        path.unlink(missing_ok=True)
        server.snapshots.save_if_due(now, server.state, server.store)
        server.snapshots.go_on()
        if server.snapshots._writer is not None:
            server.snapshots._writer.join()
        return path.exists()

    assert not saved(1.0)
    server.create()
    assert [saved(now) for now in (2.0, 3.0, 11.9, 12.0, 12.1)] == [True, False, False, True, False]
    for number in (1, 2):
        server.create("vw"[number - 1], number)
        assert not saved(12.1 + number)
    assert [saved(now) for now in (15.0, 16.0, 24.9, 25.0)] == [True, False, False, True]


def test_what_a_job_measures_of_itself_is_not_saved(tmp_path):
    """The next job would wait until its script had made such a key, and saved nothing meanwhile."""
    server = Server(tmp_path)
    server.create()
    server.create("times", 1, scratch=True)
    server.snapshots.save(server.state, server.store)
    header, _ = file.read(path_of(tmp_path, 0, 1))
    assert [key.spec.key for key in header.keys] == ["w"]


def _begin(server):
    """Begin a snapshot of two keys, of which the first has been copied."""
    server.create("v", 1)
    server.snapshots.copy_bytes = 1
    server.snapshots.save_if_due(20.0, server.state, server.store)
    server.snapshots.go_on()
    assert server.snapshots.busy


def _end(server, tmp_path):
    """End it; return how many passes that took, and the counts and first value of each key."""
    passes = 0
    while server.snapshots.busy:
        server.snapshots.go_on()
        passes += 1
    server.snapshots._writer.join()
    header, arrays = file.read(path_of(tmp_path, 0, 1))
    names = [(key, place) for key in header.keys for place in key.arrays]
    first = {key.spec.key: array[0] for (key, place), array in zip(names, arrays) if place.index == VALUE}
    return (
        passes,
        {key.spec.key: (key.units[0].pushed[1], first[key.spec.key]) for key in header.keys},
        header,
    )


def test_training_goes_on_between_the_keys_of_a_snapshot(trained, tmp_path):
    """Values and counts of a key belong together, though keys are not of one moment."""
    _begin(trained)
    was = trained.value[0]
    trained.push(1, 3, key_id=0)
    trained.push(1, 1, key_id=1)
    passes, kept, _ = _end(trained, tmp_path)
    assert passes == 1
    assert trained.value[0] != was
    assert kept == {"w": (2, was), "v": (1, -0.25)}


def test_a_client_that_starts_anew_begins_a_snapshot_anew(trained, tmp_path):
    """What it has counted in its incarnations must not be mixed."""
    _begin(trained)
    trained.state.begins(NodeId(Role.WORKER, 1), 2)
    trained.push(1, 1, key_id=1)
    passes, kept, header = _end(trained, tmp_path)
    assert passes == 2
    assert {key: pushed for key, (pushed, _) in kept.items()} == {"w": 0, "v": 1}
    assert header.incarnations == {1: 2}
