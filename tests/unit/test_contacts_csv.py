"""Which files of contacts are taken, and what is said of a refused line."""

import csv

import pytest

from project.contacts import sample_data
from project.contacts.csvfile import Fault, Row, read

HEADER = "name,email,company,phone\n"


def rows(data: bytes | str) -> list[Row]:
    items = list(read(data.encode() if isinstance(data, str) else data))
    assert [item for item in items if isinstance(item, Fault)] == []
    return [item for item in items if isinstance(item, Row)]


def faults(data: bytes | str) -> list[tuple[int, str]]:
    items = read(data.encode() if isinstance(data, str) else data)
    return [(item.line, item.reason) for item in items if isinstance(item, Fault)]


def test_a_plain_file_gives_its_contacts_with_their_lines() -> None:
    assert rows(HEADER + "Ada,ada@x.example,Ada Ltd,1\nBo,bo@x.example,,\n") == [
        Row(line=2, name="Ada", email="ada@x.example", company="Ada Ltd", phone="1"),
        Row(line=3, name="Bo", email="bo@x.example"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbfname,email\nZo\xc3\xab,z@x.example\n", id="byte order mark"),
        pytest.param("name,email\r\nZoë,z@x.example\r\n", id="CRLF"),
        pytest.param("name,email\rZoë,z@x.example\r", id="CR alone"),
        pytest.param("name;email\nZoë;z@x.example\n", id="semicolons"),
        pytest.param("\n\nname,email\n\n,\nZoë,z@x.example", id="blank lines, none at the end"),
        pytest.param(" EMAIL ,Name\n z@X.example , Zoë \n", id="other order, capitals, spaces"),
        pytest.param('"name","email"\n"Zoë","z@x.example"\n', id="all quoted"),
    ],
)
def test_the_files_that_spreadsheets_write_are_read_alike(data: bytes | str) -> None:
    (row,) = rows(data)
    assert (row.name, row.email) == ("Zoë", "z@x.example")


def test_quotes_may_hold_the_separator_quotes_and_line_ends() -> None:
    row, after = rows('name,email\n"Smith, ""Jo""\nJr.",jo@x.example\nBo,bo@x.example\n')
    assert row.name == 'Smith, "Jo" Jr.'
    assert (row.line, after.line) == (2, 4)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Ada", "Fields: 1; the header has 4."),
        ("Ada,a@x.example,,,", "Fields: 5; the header has 4."),
        (",a@x.example,,", "The name is missing."),
        ("Ada,,,", "The email is missing."),
        ("Ada,nobody,,", "“nobody” is not an e-mail address."),
        (f"{'x' * 201},a@x.example,,", "The name is longer than 200 characters."),
        ("A\0da,a@x.example,,", "The name contains a NUL character."),
        ("Ada,FIRST@x.example,,", "first@x.example is on line 2 already."),
    ],
)
def test_a_faulty_line_is_named_with_its_reason_and_the_next_is_read(
    line: str, reason: str
) -> None:
    data = f"{HEADER}First,first@x.example,,\n{line}\nLast,,,\n"
    assert faults(data) == [(3, reason), (4, "The email is missing.")]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        pytest.param("", 1, "The file is empty.", id="empty"),
        pytest.param("\n \n", 1, "The file is empty.", id="blank"),
        pytest.param(HEADER, 1, "There are no contacts below the header.", id="header alone"),
        pytest.param("name,phone\n", 1, "The header lacks the column “email”", id="no e-mail"),
        pytest.param("name,email,fax\n", 1, "The header has a column “fax”", id="unknown"),
        pytest.param("name,email,name\n", 1, "the column “name” twice", id="twice"),
        pytest.param("\ufeff".encode("utf-16"), 1, "The file is UTF-16", id="UTF-16"),
        pytest.param(
            HEADER.encode() + b"A,a@x.example,,\nZo\xeb,z@x.example,,\n",
            3,
            "The byte 0xeb is not UTF-8",
            id="Latin-1",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_one_sentence(
    data: bytes | str, line: int, reason: str
) -> None:
    ((found_line, found),) = faults(data)
    assert found_line == line
    assert reason in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"Ada,a@x.example,,\nBo,b@x.example,,\n', "A quote is opened here and never closed."),
        ('"A"da,a@x.example,,\nBo,b@x.example,,\n', "There is a quote in the middle of a field"),
        (f'"{"x" * (csv.field_size_limit() + 1)}', "A field is longer than 131072 characters"),
    ],
)
def test_a_broken_quote_ends_the_reading_at_its_line(text: str, reason: str) -> None:
    ((line, found),) = faults(HEADER + "First,first@x.example,,\n" + text)
    assert line == 3
    assert reason in found


def test_the_good_sample_is_good_and_as_the_script_makes_it() -> None:
    stored = (sample_data.FOLDER / sample_data.GOOD).read_bytes()
    assert stored == sample_data.as_csv(sample_data.lines(sample_data.ROWS))
    assert len(rows(stored)) == sample_data.ROWS


def test_the_faulty_sample_has_one_fault_of_each_kind() -> None:
    stored = (sample_data.FOLDER / sample_data.FAULTY).read_bytes()
    good = sample_data.lines(sample_data.ROWS)
    assert stored == sample_data.as_csv(sample_data.with_faults(good))
    assert [line for line, _ in faults(stored)] == [502, 1002, 1502, 2002, 2502, 3002, 3502]
