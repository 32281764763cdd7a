"""Regenerate the sample files of the example site: the same bytes every time."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from project.contacts import sample_data  # noqa: E402  # the path comes first


def main() -> None:
    good = sample_data.lines(sample_data.ROWS)
    sample_data.FOLDER.mkdir(exist_ok=True)
    for name, made in (
        (sample_data.GOOD, good),
        (sample_data.FAULTY, sample_data.with_faults(good)),
    ):
        (sample_data.FOLDER / name).write_bytes(sample_data.as_csv(made))
        print(
            f"{(sample_data.FOLDER / name).relative_to(ROOT)}: {len(made)} lines below the header"
        )


if __name__ == "__main__":
    main()
