"""What is kept of launches that may come again."""

import numpy as np

from numba_deform.programs import repeats


def test_what_is_kept_has_a_limit(monkeypatch):
    """Kinds that were not asked for longest go first; the one that is asked for stays whatever it keeps."""
    monkeypatch.setattr(repeats, "MOST", 100)
    kinds = repeats.Kinds()

    def launch(common, size):
        """Three in a row, of which the last is not run, if the kind is known still."""
        array, found = np.zeros(size, np.uint8), []
        for _ in range(3):
            kind = kinds.of(common)
            found.append(kind.report_on([array]))
            if found[-1] is None:
                array[...] = 1
                kind.keep("report", [array])
            array[...] = 0
        return found

    assert launch("a", 60) == launch("b", 40) == [None, None, "report"]
    assert list(kinds) == ["a", "b"]
    kinds.of("a")
    assert launch("c", 30)[-1] == "report" and list(kinds) == ["a", "c"]
    assert launch("d", 200)[-1] == "report" and list(kinds) == ["d"]
