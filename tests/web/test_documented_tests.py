"""The tests that docs/testing.md shows are run as they stand there."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from jobqueue.models import Job
from project.contacts.models import Contact, Import
from project.contacts.tasks import import_contacts
from tests.documents import blocks
from tests.sample_tasks import send

CONTENT = b"name,email\nAda,ada@x.example\nAlan,alan@x.example\nMei,mei@x.example\n"


class Upload:
    pk = 1


def examples() -> dict[str, Any]:
    names: dict[str, Any] = {
        "CONTENT": CONTENT,
        "Contact": Contact,
        "Import": Import,
        "Job": Job,
        "file": SimpleUploadedFile("people.csv", CONTENT),
        "import_contacts": import_contacts,
        "send_receipt": send,
        "upload": Upload,
    }
    for block in blocks("docs/testing.md", "python"):
        if "def test" in block:
            exec(block, names)
    return {name: value for name, value in names.items() if name.startswith("test_")}


EXAMPLES = examples()


def test_there_is_one_for_each_kind() -> None:
    assert len(EXAMPLES) == 3


def params() -> Iterator[Any]:
    for name, example in EXAMPLES.items():
        commits = "transactional_db" in inspect.signature(example).parameters
        yield pytest.param(name, marks=pytest.mark.django_db(transaction=commits))


@pytest.mark.parametrize("name", list(params()))
def test_a_documented_test_passes(name: str, request: pytest.FixtureRequest) -> None:
    example = EXAMPLES[name]
    fixtures = {key: request.getfixturevalue(key) for key in inspect.signature(example).parameters}
    example(**fixtures)


@pytest.mark.parametrize("backend", ["Immediate", "Dummy"])
def test_the_documented_settings_for_tests_are_those_that_exist(
    backend: str, settings: Any
) -> None:
    (block,) = [b for b in blocks("docs/testing.md", "python") if f"{backend}Backend" in b]
    names: dict[str, Any] = {}
    exec(block, names)
    settings.TASKS = names["TASKS"]
    from django.tasks import default_task_backend

    result = send.enqueue(1)
    if backend == "Dummy":
        assert default_task_backend.results == [result]  # type: ignore[attr-defined]
    else:
        assert result.status == "SUCCESSFUL"
