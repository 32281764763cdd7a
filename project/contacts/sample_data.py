"""Made-up contacts: the same ones for the same seed. No real person is meant; the addresses are in
domains that are reserved for examples."""

import csv
import io
import random
from collections.abc import Sequence
from pathlib import Path

from project.contacts.csvfile import COLUMNS

FOLDER = Path(__file__).parent / "samples"
GOOD = "contacts.csv"
FAULTY = "contacts-with-faults.csv"
ROWS = 4_000
BIG_ROWS = 200_000
SEED = 20_261

FIRST = (
    "Ada Alan Amara Anders Anna Aylin Björn Carmen Chidi Chloé Dario Elena Emeka Eva Farid Fatima "
    "Grace Hana Hiro Ines Ivan Jana João José Kai Katarína Lars Leila Li Linh Łukasz Malik Maria "
    "Mei Mehmet Nadia Nils Noor Olga Omar Paula Priya Rafael Rosa Sanjay Sofía Søren Tariq Thandi "
    "Tomáš Ulla Vera Wei Ximena Yara Yusuf Zoë"
)
LAST = (
    "Abara Andersen Araújo Bakker Becker Castillo Chen Costa Dubois Eriksson Fernández Fischer "
    "García Gruber Haddad Hansen Ito Ivanova Jensen Kaya Khan Kowalski Kumar Larsson Lindqvist "
    "Lopez Martin Mäkinen Mensah Moreau Müller Nguyen Novák Okafor Okoye O'Neill Owusu Papadakis "
    "Park Patel Pereira Petrov Rahman Rossi Saito Santos Schäfer Silva Singh Smith Suzuki Tanaka "
    "Tran Vargas Virtanen Weber Wójcik Yilmaz Zhang"
)
KINDS = ("Bakery", "Books", "Consulting", "Design", "Foods", "Garden", "Labs", "Logistics", "Works")
LEGAL = (" Ltd", " GmbH", " & Sons", ", Inc.", "")

Line = list[str]


def lines(count: int, seed: int = SEED, prefix: str = "contact") -> list[Line]:
    """Return this many contacts in the order of COLUMNS, with unique addresses."""
    dice = random.Random(seed)  # noqa: S311  (made-up data)

    def pick(words: Sequence[str]) -> list[str]:
        return dice.choices(words, k=count)

    first, last = FIRST.split(), LAST.split()
    names = zip(pick(first), pick(last), pick(KINDS), strict=True)
    companies = zip(pick(last), pick(KINDS), pick(LEGAL), strict=True)
    return [
        [
            f"{given} {family}",
            f"{prefix}-{number:06}@{domain.lower()}.example",
            # Every fifth or so has none; some have a comma, so that the file needs quotes.
            f"{owner} {kind}{legal}" if legal else "",
            f"+00 {number % 900 + 100} {number * 7919 % 1_000_000:06}",
        ]
        for number, ((given, family, domain), (owner, kind, legal)) in enumerate(
            zip(names, companies, strict=True), start=1
        )
    ]


def with_faults(good: list[Line]) -> list[Line]:
    """Return a copy with the mistakes that people's files have, spread over it."""
    faulty = [list(line) for line in good]
    step = len(faulty) // 8
    faulty[step][1] = "not an address"
    faulty[2 * step][0] = ""
    faulty[3 * step][1] = faulty[2][1].upper()
    faulty[4 * step] = faulty[4 * step][:3]
    faulty[5 * step][1] = ""
    faulty[6 * step][2] = "x" * 250
    faulty[7 * step].append("one field too many")
    return faulty


def as_csv(made: list[Line]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(made)
    return text.getvalue().encode()
