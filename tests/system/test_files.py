import resource

import pytest

from bam_jax.system import files, jsonl
from bam_jax.system.errors import UserError, ending


def test_a_file_in_no_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder") as raised:
        files.write_atomically(tmp_path / "none" / "a.md", "text")
    assert ending(raised.value) == (
        2,
        f"{tmp_path / 'none' / 'a.md'}: there is no folder {tmp_path / 'none'}; give a path that can be read and written",
    )


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


def test_only_ones_own_file_is_replaced(tmp_path):
    path = tmp_path / "page.md"
    files.keep_other(path, "# Page")
    path.write_text("# Page\n\nwritten before\n")
    files.keep_other(path, "# Page")
    path.write_text("my notes\n")
    for other in (path, tmp_path):
        with pytest.raises(UserError, match=r"is there, and this command did not write it; give another path, or move"):
            files.keep_other(other, "# Page")
