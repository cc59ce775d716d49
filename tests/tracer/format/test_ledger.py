"""The ledger: words for a reader, codes for us, and the same words in C."""

from __future__ import annotations

import pytest

from vramcast.tracer.format import ledger
from vramcast.tracer.format.ledger import Code, Entered, Entry


def test_the_header_of_the_c_code_is_what_the_table_says() -> None:
    assert ledger._HEADER.read_text() == ledger.header()


def test_what_the_null_gpu_reports_gets_its_code() -> None:
    plain = Entry.reported("noop\tcudnnCreate\t3\t0")
    assert (plain.words, plain.code, plain.library, plain.is_unknown) == ("cudnnCreate", Code.CALL, "cudnn", False)
    coded = Entry.reported(f"assumed\t{Code.NO_ORACLE.value}\t3\t0")
    assert (coded.code, coded.words, coded.library, coded.is_unknown) == (Code.NO_ORACLE, Code.NO_ORACLE.value, "cudnn", True)
    with pytest.raises(ValueError, match="paid"):
        Entry.reported("paid\tcudnnCreate\t3\t0")


def test_an_entry_says_what_it_is_about() -> None:
    drawn = Entry.of(Entered.ASSUMED, Code.DRAWN_SHAPE, 2, name="nonzero")
    assert drawn.words == "values drawn for nonzero"
    assert ledger.words([drawn, Entry(Entered.NOOP, "b", 1), Entry(Entered.NOOP, "a", 1)], Entered.NOOP) == ("a", "b")
    assert Entry(Entered.READ, "cudnn", 1).library == ""  # it was read, and nothing of cuDNN ran


@pytest.mark.parametrize("code", [code for code in Code if "{}" not in code.value])
def test_what_was_counted_under_a_codes_words_gets_the_code(code: Code) -> None:
    assert Entry.counted(code, 4) == Entry(Entered.ASSUMED, "", 4, 0, code)


def test_an_entry_comes_back_from_a_file() -> None:
    entry = Entry.of(Entered.BOUNDED, Code.CUBLASLT_WORKSPACE, 7, 123)
    assert Entry.of_row(entry.to_row()) == entry
