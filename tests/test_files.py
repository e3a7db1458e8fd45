"""What lies under every floor: locks, JSON, the header of our files, and children that end with their parent."""

import json
import signal
import struct
import subprocess
import sys
import time

import pytest

from fedqssl.files import is_locked, locked, read_json, read_json_or_none, write_json
from fedqssl.header import SIZE, Header

HOLD = """
import sys, time
from pathlib import Path
from fedqssl.files import locked
with locked(Path(sys.argv[1]), ValueError("busy")):
    print("held", flush=True)
    time.sleep(600)
"""
CHILD = """
import sys, time
from fedqssl.watch_parent import end_with_parent
end_with_parent(sys.stdin)
print("watching", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_by_one_process_and_released_when_it_is_killed(tmp_path):
    path = tmp_path / ".lock"
    assert not is_locked(path)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path)
        with pytest.raises(ValueError, match="busy"), locked(path, ValueError("busy")):
            raise AssertionError("two processes hold the lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    assert not is_locked(path)
    with locked(path, ValueError("busy")):
        assert is_locked(path)
    assert not is_locked(path)


def test_json_is_read_or_the_error_says_which_file_and_what_to_do(tmp_path):
    path = tmp_path / "a.json"
    assert read_json_or_none(path) is None
    with pytest.raises(KeyError, match=r"a\.json cannot be read .*No such file.*; make it"):
        read_json(path, KeyError, "make it")
    write_json(path, {"a": [1.5, float("nan")]})
    assert read_json(path) == read_json_or_none(path) == {"a": [1.5, None]}
    for broken in (b'{"a"', b"\xff", b"[" * 100_000):
        path.write_bytes(broken)
        assert read_json_or_none(path) is None
        with pytest.raises(ValueError, match="cannot be read"):
            read_json(path)
    assert json.dumps(read_json_or_none(tmp_path)) == "null"  # a folder


def test_the_header_takes_its_own_bytes_only():
    header = Header(b"TEST1\0", 2, KeyError, "not ours", older="; make it again", damaged="; copy it again")
    data = header.wrap(b"body")
    assert data[:8] == b"TEST1\0" + struct.pack("<H", 2) and len(data) == SIZE + 4 == 52
    assert header.unwrap(data, 52) == b"body" and header.unwrap(header.wrap(b""), 100) == b""
    wrong = {
        "not ours": b"TEST2\0" + data[6:],
        "newer than 2.*update": data[:6] + b"\3\0" + data[8:],
        "version 1, but this fedqssl reads version 2; make it again": data[:6] + b"\1\0" + data[8:],
        "truncated or padded: 3 bytes.*; copy it again": data[:-1],
        "truncated or padded: 5 bytes": data + b"x",
        "checksum mismatch.*; copy it again": data[:-1] + b"x",
    }
    for message, changed in wrong.items():
        with pytest.raises(KeyError, match=message):
            header.unwrap(changed, 100)
    with pytest.raises(KeyError, match="52 bytes are more than the 51 allowed"):
        header.unwrap(data, 51)


def test_a_child_ends_when_its_pipe_closes():
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "watching\n"
        time.sleep(0.2)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(60) == 1
