"""What `pip install .` without extras gives; proved on the wheel, with click and rich out of reach."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def run(installed, program, *, cwd):
    """Run a program that sees the installed package and its dependencies, but not this checkout."""
    first = f"import sys; sys.path[:0] = [{str(installed)!r}, {sysconfig.get_path('purelib')!r}]; "
    hidden = "sys.modules.update(click=None, rich=None); " if "click" not in program else ""
    command = [sys.executable, "-S", "-I", "-W", "error", "-c", first + hidden + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_wheel_carries_types_licence_and_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"hurray_arrow/py.typed", "hurray_arrow/cli/demo_data/smollm2_small.npz"} <= names
    assert {"hurray_arrow/report/page.css", "hurray_arrow/report/page.html.jinja"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "examples/")) for name in names)


def test_import_works_without_extras(installed, tmp_path):
    done = run(installed, "import hurray_arrow; print(hurray_arrow.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)


def test_command_without_its_extra_says_what_to_install(installed, tmp_path):
    done = run(installed, "from hurray_arrow.cli import main; main()", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "hurray-arrow: click is not installed: pip install 'hurray-arrow[cli]'\n"


def test_demo_runs_from_the_installed_package(installed, tmp_path):
    program = "import click; sys.argv = ['hurray-arrow', 'demo']; from hurray_arrow.cli import main; main()"
    done = run(installed, program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hurray-arrow-demo.arrow").exists()
