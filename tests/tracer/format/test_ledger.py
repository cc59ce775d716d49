"""The ledger: words for readers, codes, and the same words in C."""

from __future__ import annotations

import pytest

from vramcast.tracer.format import ledger
from vramcast.tracer.format.ledger import CallHandling, Code, Entry


def test_c_header_matches_table() -> None:
    assert ledger._HEADER.read_text() == ledger.header()


def test_null_gpu_reports_get_codes() -> None:
    plain = Entry.reported("noop\tcudnnCreate\t3\t0")
    assert (plain.words, plain.code, plain.library, plain.is_unknown) == ("cudnnCreate", Code.CALL, "cudnn", False)
    coded = Entry.reported(f"assumed\t{Code.NO_ORACLE.value}\t3\t0")
    assert (coded.code, coded.words, coded.library, coded.is_unknown) == (Code.NO_ORACLE, Code.NO_ORACLE.value, "cudnn", True)
    with pytest.raises(ValueError, match="paid"):
        Entry.reported("paid\tcudnnCreate\t3\t0")


def test_entry_names_its_subject() -> None:
    drawn = Entry.of(CallHandling.ASSUMED, Code.DRAWN_SHAPE, 2, name="nonzero")
    assert drawn.words == "values drawn for nonzero"
    assert ledger.words([drawn, Entry(CallHandling.NOOP, "b", 1), Entry(CallHandling.NOOP, "a", 1)], CallHandling.NOOP) == (
        "a",
        "b",
    )
    assert Entry(CallHandling.READ, "cudnn", 1).library == ""  # the library was read, but no cuDNN call ran


@pytest.mark.parametrize("code", [code for code in Code if "{}" not in code.value])
def test_counted_words_get_their_code(code: Code) -> None:
    assert Entry.counted(code, 4) == Entry(CallHandling.ASSUMED, "", 4, 0, code)


def test_entry_round_trips_through_file() -> None:
    entry = Entry.of(CallHandling.BOUNDED, Code.CUBLASLT_WORKSPACE, 7, 123)
    assert Entry.of_row(entry.to_row()) == entry
