"""Which rows of a piece have changed since it was copied."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.server.changed_rows import ChangedRows

places = st.lists(st.integers(0, 6), max_size=4)


@given(st.lists(st.one_of(places, st.sampled_from(["mark", "all"])), max_size=20))
def test_any_mark_equals_a_list_of_what_followed(steps):
    """Also one that others were made after; and none says anything of rows from before a new beginning."""
    rows, marks = ChangedRows(7), []
    for step in steps:
        if step == "mark":
            marks.append((rows.mark(), set()))
        elif step == "all":
            rows.note_all()
            marks = [(mark, None) for mark, _ in marks]
        else:
            rows.note(np.array(step, np.int64))
            for _, since in marks:
                if since is not None:
                    since.update(step)
        for mark, since in marks:
            found = rows.since(mark)
            assert (found is None) == (since is None)
            assert found is None or found.tolist() == sorted(since)
    assert rows.since(None) is None


def test_a_mark_of_another_piece_says_nothing():
    """A table that was made anew has other rows under the same numbers."""
    rows, others = ChangedRows(3), ChangedRows(3)
    mark = others.mark()
    rows.mark()
    assert rows.since(mark) is None
