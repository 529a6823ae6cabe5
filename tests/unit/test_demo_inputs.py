"""What the demo is given: every mistake is named, with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasestore.demo import inputs
from leasestore.demo.inputs import BadInput, keep_directory, read_orders, sample_orders


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.jsonl"


def test_the_sample_is_valid_and_has_eight_orders() -> None:
    assert len(read_orders(sample_orders())) == 8


def test_the_sample_inside_the_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.jsonl").touch()
    monkeypatch.setattr(inputs, "__file__", str(tmp_path / "inputs.py"))
    assert sample_orders() == tmp_path / "orders.jsonl"


def test_orders_come_in_the_order_of_the_file(file: Path) -> None:
    file.write_text('{"id": "b", "qty": 2}\n{"id": "a", "qty": 1}\n')
    assert read_orders(file) == [{"id": "b", "qty": 2}, {"id": "a", "qty": 1}]


def test_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"id": "a", "qty": 1}\r\n\r\n  \n{"id": "b", "qty": 2}')
    assert [order["id"] for order in read_orders(file)] == ["a", "b"]


GOOD = b'{"id": "a", "qty": 1}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": expected 1 to 50 orders, got 0"),
        (b"\n\n", ": expected 1 to 50 orders, got 0"),
        (
            b"".join(b'{"id": "%d", "qty": 1}\n' % n for n in range(51)),
            ": expected 1 to 50 orders, got 51",
        ),
        (b" " * 100_001, ": expected at most 100000 bytes"),
        (GOOD + b"\xff\n", ", line 2: expected UTF-8"),
        (GOOD + b'{"id": "b", \n', ", line 2: expected JSON: Expecting property name"),
        (
            GOOD + b"\n[]\n",
            ", line 3: event: expected dict with exactly the keys id, qty, got list",
        ),
        (GOOD + b'{"id": "b"}\n', ", line 2: event: expected dict with exactly the keys"),
        (GOOD + b'{"id": "b c", "qty": 1}\n', ", line 2: id: expected str of 1 to 64"),
        (GOOD + b'{"id": "b", "qty": 0}\n', ", line 2: qty: expected int from 1 to 1000"),
        (GOOD + b'{"id": "b", "qty": true}\n', ", line 2: qty: expected int from 1 to 1000"),
        (GOOD + b'{"id": "a", "qty": 2}\n', ", line 2: id 'a' was given before"),
        (GOOD + b"[" * 99_000, ", line 2: "),
        (GOOD + b"1" * 5000, ", line 2: "),
    ],
)
def test_a_mistake_is_named_in_one_line(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        read_orders(file)
    message = str(refused.value)
    assert message.startswith(f"{file}{said}"), message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(BadInput, match=r"orders\.jsonl: cannot be read: No such file"):
        read_orders(file)
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_orders(file.parent)


def test_the_directory_to_keep_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert keep_directory(Path("a/b")) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_of_other_files_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert keep_directory(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["queue.db", "inbox.db"])
def test_a_directory_of_an_earlier_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadInput, match=f"holds {name} of an earlier run"):
        keep_directory(tmp_path)


def test_a_file_is_no_directory(file: Path) -> None:
    file.touch()
    with pytest.raises(BadInput, match="cannot be used as a directory: File exists"):
        keep_directory(file)


def test_a_directory_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so the answer is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadInput, match="is not writable"):
        keep_directory(tmp_path)
