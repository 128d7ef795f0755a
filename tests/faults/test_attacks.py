"""Every attack ends as its table says, in bounded memory, and harms no terminal."""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import re
import resource
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from hurray_arrow import HurrayArrowError, open_snapshot, read_stream
from hurray_arrow.cli.app import app
from hurray_arrow.cli.output import printable
from tests.faults.attacks.attack import ATTACKS, INCOMPLETE, TAKEN, UNSUPPORTED, one, share, stream
from tests.faults.attacks.make_attacks import README, readme, write
from tests.faults.attacks.texts import HARMFUL
from tests.faults.children import FREE_BYTES, run_cases
from tests.faults.forgery import Forgery
from tests.faults.outcome import code_of

#: What keeps the machine alive should a bound be missing; the tests' own bound is FREE_BYTES above the file's size.
LAST_BOUND_BYTES = 4 << 30
METADATA_KEY = b"hurray_arrow.snapshot"
FINE, FINDINGS, UNREADABLE = 0, 1, 3


def look(argument, share_of_cases, started):
    """Return what each attack ends in, how much memory that takes, and what the commands say and exit with."""
    # One folder for each child: a file that another one truncates while it is mapped kills who reads it.
    folder = Path(argument, str(os.getpid()))
    folder.mkdir()
    _look_at(folder, share(), stream())
    # What is loaded by now stays; looking through it for garbage would take longer than the attacks.
    gc.collect()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_AS, (LAST_BOUND_BYTES, resource.RLIM_INFINITY))
    found = {}
    for number, name in enumerate(share_of_cases):
        started(number)
        attack = ATTACKS[name]
        content = attack.make()
        found[name] = _look_at(folder, *(b"", content) if attack.is_stream else (content, b""))
    return found


def _look_at(folder, file, a_stream):
    path = folder / "s.arrow"
    path.write_bytes(file)
    size = max(len(file), len(a_stream))
    del file
    _settle()
    before, seen = _memory_bytes("VmRSS"), {}
    steps = {"stream": lambda: _ends_of_stream(a_stream)} if a_stream else {}
    if path.stat().st_size:
        steps |= {"mapped": lambda: _ends(path, mapped=True), "not mapped": lambda: _ends(path, mapped=False)}
        steps |= {"partial": lambda: _ends_partial(path)}
        steps |= {command: lambda command=command: _command(path, command) for command in COMMANDS}
    peaks = {}
    for step, take in steps.items():
        seen[step] = take()
        peaks[step] = _memory_bytes("VmHWM") - before - size
        _settle()
    return seen, peaks


def _settle():
    """Give back what the last case left, and begin to measure anew."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _memory_bytes(what):
    return int(re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def _ends(path, *, mapped):
    at = "open"
    try:
        with open_snapshot(path, mapped=mapped) as snapshot:
            at = "read"
            for _ in snapshot.iter_tensors():
                pass
            at = "verify"
            snapshot.verify()
    except HurrayArrowError as error:
        return at, code_of(error)
    return "", TAKEN


def _ends_partial(path):
    try:
        with open_snapshot(path, mapped=False) as snapshot:
            snapshot.read_sequences(0)
    except HurrayArrowError as error:
        return code_of(error)
    return TAKEN


def _ends_of_stream(content):
    at = "open"
    try:
        reader = read_stream(io.BytesIO(content))
        at = "read"
        for _ in reader:
            pass
    except HurrayArrowError as error:
        return at, code_of(error)
    return "", TAKEN


COMMANDS = {
    "inspect": ["inspect"],
    "inspect --json": ["inspect", "--json"],
    "validate": ["validate"],
    "verify": ["verify", "--json"],
    "copy": ["copy"],
    "archive": ["archive", "--no-sanitize"],
}


def _command(path, command):
    target = path.with_name("copy.arrow")
    more = [str(target), "--overwrite"] if command in ("copy", "archive") else []
    result = CliRunner().invoke(app, [*COMMANDS[command], str(path), *more])
    left = target.exists()
    target.unlink(missing_ok=True)
    caught = None if result.exception is None or isinstance(result.exception, SystemExit) else repr(result.exception)
    return result.exit_code, result.output, caught, left


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What came of every attack, each in one of two children."""
    folder = tmp_path_factory.mktemp("attacks")
    names, found = list(ATTACKS), {}
    for part in run_cases(look, str(folder), names, timeout_seconds=600):
        found |= part
    assert found.keys() == ATTACKS.keys()
    return found


def test_each_ends_in_its_rule_and_at_its_moment(seen):
    wrong = {}
    for name, (steps, _) in seen.items():
        attack = ATTACKS[name]
        for step in ("mapped", "not mapped", "stream"):
            if step in steps and steps[step] != (attack.at, attack.stopped_by):
                wrong[name, step] = steps[step]
    assert wrong == {}


def test_a_partial_read_is_stopped_too(seen):
    """It looks at less, so that what it does not look at may pass; it takes nothing else for right."""
    passed = {name for name, (steps, _) in seen.items() if steps.get("partial") == TAKEN}
    stopped_later = {name for name in passed if ATTACKS[name].at != ""}
    assert {name for name, each in ATTACKS.items() if each.at == "" and not each.is_stream} <= passed
    assert all(ATTACKS[name].at in ("read", "verify") for name in stopped_later)


def test_none_takes_more_memory_than_its_size_and_64_mib(seen):
    too_much = {
        (name, step): f"{peak >> 20} MiB above its size"
        for name, (_, peaks) in seen.items()
        for step, peak in peaks.items()
        if peak > FREE_BYTES
    }
    assert too_much == {}


def _exits(attack):
    """Return the exit codes that each command may end with."""
    if attack.stopped_by == TAKEN:
        return {command: {FINE} for command in COMMANDS}
    unreadable = attack.stopped_by in (INCOMPLETE, UNSUPPORTED)
    checking = {UNREADABLE} if unreadable else {FINDINGS}
    # Listing looks at no row; what it shows of a group comes from one.
    listing = {UNREADABLE} if attack.at == "open" else {FINE, UNREADABLE}
    return {
        "inspect": listing,
        "inspect --json": listing,
        "validate": checking,
        "verify": checking,
        "copy": {UNREADABLE},
        "archive": {UNREADABLE},
    }


def test_the_commands_end_with_their_exit_codes_and_leave_nothing(seen):
    wrong = {}
    for name, (steps, _) in seen.items():
        for command, codes in _exits(ATTACKS[name]).items():
            if command in steps:
                code, _, caught, left = steps[command]
                if code not in codes or caught or left != (code == FINE and command in ("copy", "archive")):
                    wrong[name, command] = code, caught, left
    assert wrong == {}


def test_nothing_printed_acts_on_a_terminal(seen):
    wrong = {
        (name, command): output
        for name, (steps, _) in seen.items()
        for command, (_, output, *_) in ((command, steps[command]) for command in COMMANDS if command in steps)
        if not all(char.isprintable() or char == "\n" for char in output)
    }
    assert wrong == {}


@pytest.mark.parametrize("name", [name for name, text in HARMFUL.items() if len(text) < 1000])
def test_harmful_names_are_shown_as_they_are_but_for_escapes(seen, name):
    """Markup is no command either: it is printed, not obeyed."""
    steps, _ = seen[name]
    lines = steps["inspect"][1].splitlines()
    assert f"  model.name: {printable(HARMFUL[name])}" in lines
    assert json.loads(steps["inspect --json"][1])["metadata"]["model"]["name"] == HARMFUL[name]


def test_the_table_is_that_of_the_attacks():
    assert readme() == README.read_text()
    assert len(ATTACKS) > 90


def test_they_can_be_written_into_a_folder(tmp_path, monkeypatch):
    for name in list(ATTACKS)[5:]:
        monkeypatch.delitem(ATTACKS, name)
    write(tmp_path / "there")
    assert len(list((tmp_path / "there").iterdir())) == 5


#: What a member of a set may say of itself: anything.
ANYTHING = [7, -1, "x", [], {}, None, True, 1.5, 10**30, ["a", "b"], [5, 2], [-1, 3], {"a": 1}, "\x1b[2J"]
KEYS = {"set": ("id", "member", "members"), "topology": ("tp_rank", "tp_size", "head_range", "head_replica", "pp_rank")}


def look_at_sets(argument, values, started):
    """Return what the commands say of sets of two members, whose metadata have one value each in every place."""
    folder = Path(argument, str(os.getpid()))
    folder.mkdir()
    resource.setrlimit(resource.RLIMIT_AS, (LAST_BOUND_BYTES, resource.RLIM_INFINITY))
    found = {}
    for number, value in enumerate(values):
        started(number)
        for document, key in ((document, key) for document, keys in KEYS.items() for key in keys):
            for member in (0, 1):
                said = {
                    "set": {"id": "s", "member": member, "members": 2},
                    "topology": {"tp_rank": member, "tp_size": 2, "head_range": [member, member + 1]},
                }
                said[document][key] = value
                (folder / f"c.m{member}.arrow").write_bytes(_with_metadata(said))
            for command in ("inspect", "validate"):
                result = CliRunner().invoke(app, [command, str(folder / "c.m*.arrow")])
                untyped = result.exception is not None and not isinstance(result.exception, SystemExit)
                found[json.dumps(value), document, key, command] = result.exit_code, result.output, untyped
    return found


def _with_metadata(said):
    forgery = Forgery(one())
    pairs = dict(forgery.schema.metadata)
    pairs[METADATA_KEY] = json.dumps({**json.loads(pairs[METADATA_KEY]), **said}).encode()
    forgery.set_schema(forgery.schema.with_metadata(pairs))
    return forgery.content()


def test_sets_whose_members_say_anything(tmp_path):
    found = {}
    for part in run_cases(look_at_sets, str(tmp_path), ANYTHING, timeout_seconds=600):
        found |= part
    assert len(found) == 2 * 8 * len(ANYTHING)
    wrong = {
        case: seen
        for case, seen in found.items()
        if seen[0] not in (FINE, FINDINGS, UNREADABLE)
        or seen[2]
        or not all(char.isprintable() or char == "\n" for char in seen[1])
    }
    assert wrong == {}
