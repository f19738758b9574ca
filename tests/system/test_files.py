import os
import resource
import stat
from concurrent import futures

import pytest

from bam_jax.system import files, jsonl, lock
from bam_jax.system.errors import UserError, ending


def test_a_file_in_no_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        files.write_atomically(tmp_path / "none" / "a.md", "text")
    says = f"{tmp_path}/none/a.md: there is no folder {tmp_path}/none; give a path that can be read and written"
    assert ending(raised.value) == (2, says)


def test_a_full_disk_is_the_users_to_mend_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError) as raised:
            files.write_atomically(path, "x" * 100)
        with pytest.raises(OSError) as torn, jsonl.Writer(tmp_path / "metrics.jsonl") as writer:
            writer.write({"step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for error, name in ((raised, "report.md"), (torn, "metrics.jsonl")):
        says = f"{tmp_path / name}: File too large; make room on the disk, and give the same command again"
        assert ending(error.value) == (2, says)
    assert path.read_text() == "before" and list(jsonl.read(tmp_path / "metrics.jsonl")) == []
    assert {file.name for file in tmp_path.iterdir()} == {"report.md", "metrics.jsonl"}


@pytest.mark.parametrize("end", ["", "/", "/../data/."])
def test_a_folder_is_listed_as_pathlib_lists_it(tmp_path, end):
    root = tmp_path / "data"
    for name in "a.txt none .hidden.txt deep/er/b.txt folder.txt/c.jsonl.gz .git/d.txt e..txt ünd.txt".split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "link.txt").symlink_to(root / "a.txt")
    (root / "broken.txt").symlink_to("nowhere")
    (root / "round.txt").symlink_to(root)
    expected = {
        path.relative_to(root).as_posix(): path.stat().st_size if path.exists() else 0
        for path in root.rglob("*")
        if path.suffix and path.name[0] != "." and not path.is_dir()
    }
    found = files.list_files(f"{root}{end}", ("*",))
    assert {file.name: file.size for file in found} == expected and len(found) == 8
    assert all(os.path.lexists(file.path) for file in found)


def test_only_ones_own_file_is_replaced(tmp_path):
    path = tmp_path / "page.md"
    files.keep_other(path, "# Page")
    path.write_text("# Page\n\nwritten before\n")
    files.keep_other(path, "# Page")
    path.write_text("my notes\n")
    for other in (path, tmp_path):
        with pytest.raises(UserError, match=r"is there, and this command did not write it; give another path, or move"):
            files.keep_other(other, "# Page")


def test_writers_with_one_process_number_do_not_collide(tmp_path):
    path = tmp_path / "config.json"
    with futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: files.write_atomically(path, str(number % 10) * 10**5), range(200)))
    assert len({*path.read_text()}) == 1 and os.path.getsize(path) == 10**5
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_new_file_has_the_mode_that_the_umask_leaves_and_replaces_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "report.md").symlink_to("victim")
    usual = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "report.md", "new")
    finally:
        os.umask(usual)
    assert (tmp_path / "victim").read_text() == "mine" and (tmp_path / "report.md").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "report.md").lstat().st_mode) == 0o640


def test_old_drafts_of_killed_processes_are_swept_by_who_holds_the_folder(tmp_path):
    for name, age in ((".a.json.0011.draft", 2 * 24 * 3600), (".a.json.0022.draft", 60)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, times=(0, (tmp_path / name).stat().st_mtime - age))
    with lock.hold_folder(tmp_path, "busy"):
        assert {*os.listdir(tmp_path)} == {".a.json.0022.draft", ".lock"}
