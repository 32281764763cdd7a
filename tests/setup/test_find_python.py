import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "find-python"
REAL = getattr(sys, "_base_executable", sys.executable)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that is the whole PATH, in a name with a space."""
    folder = tmp_path / "my programs"
    folder.mkdir()
    for name in ("sh", "sed"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def find(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    if libraries := os.environ.get("LD_LIBRARY_PATH"):  # this Python may need it
        environment["LD_LIBRARY_PATH"] = libraries
    return subprocess.run(
        [SCRIPT],
        env={"PATH": str(path), "HOME": str(path.parent / "home"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_shim_that_does_not_work_is_skipped(path: Path) -> None:
    program(path / "python3.13", 'echo "pyenv: python3.13: command not found" >&2; exit 127')
    program(path / "python3", f'exec "{REAL}" "$@"')
    found = find(path)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert os.access(found.stdout.strip(), os.X_OK)


def test_a_python_that_cannot_make_environments_is_skipped(path: Path) -> None:
    program(path / "python3.13", 'case "$*" in *ensurepip*) exit 1;; esac; echo "$0"')
    program(path / "python3.14", f'exec "{REAL}" "$@"')
    assert find(path).stdout == find(path, PYTHON="python3.14").stdout != ""


def test_an_interpreter_of_a_version_manager_is_found_without_its_shim(path: Path) -> None:
    home = path.parent / "home"
    program(home / ".pyenv/versions/3.13.99/bin/python3", f'exec "{REAL}" "$@"')
    assert find(path).returncode == 0


def test_the_python_of_an_environment_is_replaced_by_its_base(
    path: Path,
) -> None:
    found = find(path, PYTHON=sys.executable)
    assert not Path(found.stdout.strip()).is_relative_to(sys.prefix)


@pytest.mark.parametrize("unfit", ["/nonexistent/python", "/bin/true", "no-such-program"])
def test_an_unsuitable_python_is_refused_with_one_sentence(path: Path, unfit: str) -> None:
    program(path / "python3", f'exec "{REAL}" "$@"')
    refused = find(path, PYTHON=unfit)
    assert refused.returncode == 1
    assert refused.stdout == ""
    sentence = "is not a working Python 3.13 or newer with the modules venv and ensurepip."
    assert refused.stderr == f"PYTHON={unfit} {sentence}\n"
