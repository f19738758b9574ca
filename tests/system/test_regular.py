import os
import socket

import pytest

from bam_jax.system import jsonl, lock, regular
from bam_jax.system.errors import UserError


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # an address is short


KINDS = {
    "pipe": lambda path: os.mkfifo(path),
    "socket": make_socket,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "victim": lambda path: path.symlink_to("victim"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.fixture(params=KINDS)
def odd(request, tmp_path, monkeypatch):
    """The path of something else than a regular file, beside a victim."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "victim").write_text("{}\n")
    KINDS[request.param](tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize(
    "use",
    [
        regular.read,
        regular.size,
        jsonl.Writer,
        jsonl.is_torn,
        lock.is_held,
        lambda path: list(jsonl.read(path)),
        lambda path: lock.hold(path, "busy").__enter__(),
        lambda path: lock.hold(path).__enter__(),
    ],
)
def test_only_regular_files_are_opened(use, odd):
    with pytest.raises(UserError, match=r"run\.jsonl is a .*; (take it away|put what it leads to)") as error:
        use(odd)
    assert "\n" not in str(error.value)
    assert (odd.parent / "victim").read_text() == "{}\n" and not (odd.parent / "nowhere").exists()


def test_a_file_or_a_line_larger_than_its_kind_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 12 * 2**30)
    for read in (regular.read, lambda path: list(jsonl.read(path))):
        with pytest.raises(UserError, match=r"metrics\.jsonl has more than .* bytes"):
            read(path)
    monkeypatch.setattr(regular, "DOCUMENT", 100)
    path.write_text('{"step": 1}\n' + '{"step": 2, "note": "' + "x" * 1000 + '"}\n')
    with pytest.raises(UserError, match="line 2 has 100 bytes or more"):
        list(jsonl.read(path))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_a_tree_holds_files_and_folders_only(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, place in enumerate(("tree", "tree/inner", "tree/inner/file")):
        root = tmp_path / f"{number}"
        (root / place).parent.mkdir(parents=True)
        KINDS[kind](root / place)
        with pytest.raises(UserError, match=f"{place} is a "):
            regular.list_tree(root / "tree")


def test_a_tree_is_listed_up_to_a_number_of_entries(tmp_path, monkeypatch):
    names = {tmp_path / name for name in ("a", "b/c", "b/d/e")}
    (tmp_path / "b/d").mkdir(parents=True)
    for name in names:
        name.touch()
    assert {*regular.list_tree(tmp_path)} == names and regular.list_tree(tmp_path / "none") == []
    for most in (4, 1):
        monkeypatch.setattr(regular, "ENTRIES", most)
        with pytest.raises(UserError, match=f"holds more than {most} files"):
            regular.list_tree(tmp_path)
