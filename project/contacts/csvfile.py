"""From a file's bytes to contacts, or to faults that say which line to correct. Pure, apart from
Django's own e-mail rule."""

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

COLUMNS = ("name", "email", "company", "phone")
REQUIRED = ("name", "email")
MAX_LENGTHS = {"name": 200, "email": 254, "company": 200, "phone": 50}
EXPECTED = "write name, email, and if you like company and phone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The contact of one line, cleaned."""

    line: int
    name: str
    email: str
    company: str = ""
    phone: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line."""

    line: int
    reason: str


def read(data: bytes) -> Iterator[Row | Fault]:
    """Yield each contact or fault in the file's order. A line is the first one of its record."""
    text = _decoded(data)
    if isinstance(text, Fault):
        yield text
        return
    records = _records(text)
    line, header = next(records, (1, []))
    if isinstance(header, Fault):
        yield header
        return
    names = [name.strip().lower() for name in header]
    if fault := _header_fault(line, names):
        yield fault
        return
    yield from _rows(records, names)


def _decoded(data: bytes) -> str | Fault:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Fault(1, "The file is UTF-16: save it as “CSV UTF-8”.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        return Fault(line, f"The byte 0x{byte:02x} is not UTF-8: save the file as “CSV UTF-8”.")


def _records(text: str) -> Iterator[tuple[int, list[str] | Fault]]:
    """Yield (line, fields) of every record that is not blank; a broken quote ends the file."""
    # Spreadsheets in many countries use semicolons; the header line decides.
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, Fault(line, _quote_reason(str(error)))
            return
        if any(field.strip() for field in fields):
            yield line, fields


def _quote_reason(error: str) -> str:
    if "field larger than" in error:
        return f"A field is longer than {csv.field_size_limit()} characters: is a quote missing?"
    if "unexpected end of data" in error:
        return "A quote is opened here and never closed."
    return "There is a quote in the middle of a field: double it, or leave it out."


def _header_fault(line: int, names: list[str]) -> Fault | None:
    if not names:
        return Fault(1, "The file is empty.")
    for name in names:
        if name not in COLUMNS:
            return Fault(line, f"The header has a column “{name}”: {EXPECTED}.")
        if names.count(name) > 1:
            return Fault(line, f"The header has the column “{name}” twice.")
    if missing := [name for name in REQUIRED if name not in names]:
        return Fault(line, f"The header lacks the column “{missing[0]}”: {EXPECTED}.")
    return None


def _rows(
    records: Iterator[tuple[int, list[str] | Fault]], names: list[str]
) -> Iterator[Row | Fault]:
    seen: dict[str, int] = {}
    is_empty = True
    for line, fields in records:
        is_empty = False
        if isinstance(fields, Fault):
            yield fields
        elif len(fields) != len(names):
            yield Fault(line, f"Fields: {len(fields)}; the header has {len(names)}.")
        else:
            yield _row(line, dict(zip(names, fields, strict=True)), seen)
    if is_empty:
        yield Fault(1, "There are no contacts below the header.")


def _row(line: int, fields: dict[str, str], seen: dict[str, int]) -> Row | Fault:
    values = {name: " ".join(value.split()) for name, value in fields.items()}
    for name, value in values.items():
        if not value and name in REQUIRED:
            return Fault(line, f"The {name} is missing.")
        if len(value) > MAX_LENGTHS[name]:
            return Fault(line, f"The {name} is longer than {MAX_LENGTHS[name]} characters.")
        if "\0" in value:
            return Fault(line, f"The {name} contains a NUL character.")
    email = values["email"] = values["email"].lower()
    try:
        validate_email(email)
    except ValidationError:
        return Fault(line, f"“{email}” is not an e-mail address.")
    if first := seen.get(email):
        return Fault(line, f"{email} is on line {first} already.")
    seen[email] = line
    return Row(line=line, **values)
