"""The commit that records name."""

import subprocess

from bam_jax.system import git


def test_the_commit_is_that_of_the_code():
    said = git.describe()
    assert said is None or len(said.removesuffix("-dirty")) >= 7


def test_records_make_no_code_dirty(tmp_path, monkeypatch):
    run = lambda *words: subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path, check=True
    )
    code, *kept = tmp_path / "code.py", *(tmp_path / folder / "x.jsonl" for folder in git.RECORDS)
    for path in (code, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        run(*words)
    monkeypatch.setattr(git, "__file__", str(code))
    clean = git.describe()
    for path in kept:
        path.write_text("a line\n")
    assert git.describe() == clean and "dirty" not in clean
    code.write_text("pass\n")
    assert git.describe() == f"{clean}-dirty"
