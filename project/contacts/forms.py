"""What the pages' forms accept."""

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from project.contacts.partner import PLANS
from project.contacts.sample_data import BIG_ROWS, FAULTY, GOOD

MAX_BYTES = 10 * 1024 * 1024
MAX_WORDS = f"{MAX_BYTES // 1024**2} MB"
SOURCES = [
    (GOOD, "Import the good file"),
    (FAULTY, "Import the file with faults"),
    ("big", f"Import {BIG_ROWS:,} made-up contacts"),
]


class UploadForm(forms.Form):
    """A file of the user's own."""

    file = forms.FileField(
        label="CSV file",
        help_text="Columns: name, email, and if you like company and phone. "
        f"Separated by commas or semicolons, UTF-8, at most {MAX_WORDS}.",
        error_messages={"empty": "The file is empty."},
        widget=forms.FileInput(attrs={"accept": ".csv,text/csv"}),
    )
    receipt_to = forms.EmailField(label="E-mail the receipt to", initial="you@example.com")

    def clean_file(self) -> "UploadedFile[Any]":
        file: UploadedFile[Any] = self.cleaned_data["file"]
        if (file.size or 0) > MAX_BYTES:
            raise forms.ValidationError(
                f"The file has {(file.size or 0) / 1024**2:.1f} MB; at most {MAX_WORDS} are taken."
            )
        return file


class SampleForm(forms.Form):
    """One of the shipped files, or a big generated one."""

    source = forms.ChoiceField(choices=SOURCES)


class WebhookForm(forms.Form):
    """A message for the partner, and how the partner will behave."""

    plan = forms.ChoiceField(
        label="The partner", choices=[(name, words) for name, (words, _) in PLANS.items()]
    )
    delay = forms.TypedChoiceField(
        label="Send it",
        choices=[(0, "now"), (60, "in a minute"), (3600, "in an hour")],
        coerce=int,
    )
