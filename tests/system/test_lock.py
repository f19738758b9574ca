import contextlib
import subprocess
import sys
import threading

import pytest

from bam_jax.system import lock
from bam_jax.system.errors import UserError


def test_a_lock_is_held_by_one_until_its_block_ends_and_looking_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    assert not lock.is_held(path) and not path.exists()
    for _ in range(2):
        with lock.hold(path, "busy"):
            with pytest.raises(UserError, match="^busy$"), lock.hold(path, "busy"):
                pass
            assert lock.is_held(path) and lock.is_held(path)
        assert not lock.is_held(path)
    with pytest.raises(ZeroDivisionError), lock.hold(path):
        raise ZeroDivisionError
    assert not lock.is_held(path)


@contextlib.contextmanager
def waiting(path):
    """Another thread that waits for a lock; the block has the event of its entering."""
    entered, end = threading.Event(), threading.Event()

    def wait():
        with lock.hold(path):
            entered.set()
            end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield entered
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("refused", [False, True])
def test_without_words_a_lock_is_waited_for(tmp_path, refused):
    """Also one that is taken away meanwhile: else a third, who makes the file once more, would hold it too."""
    path = tmp_path / "lock"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError), lock.hold(path):
            entered = stack.enter_context(waiting(path))
            assert not entered.wait(0.1)
            if refused:
                raise UserError("no")
        assert entered.wait(10) and lock.is_held(path)


@pytest.mark.parametrize("below", [".", "a/b"])
def test_what_is_refused_leaves_nothing_behind(tmp_path, below):
    with pytest.raises(UserError, match="^no$"), lock.hold_folder(tmp_path / below, "busy"):
        raise UserError("no")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError), lock.hold_folder(tmp_path / below, "busy"):
        (tmp_path / below / "mine").touch()
        raise UserError("late")
    assert [path.name for path in (tmp_path / below).iterdir()] == ["mine"]


def test_a_lock_that_was_there_stays_after_a_refusal(tmp_path):
    with lock.hold(tmp_path / "lock"):
        pass
    with pytest.raises(UserError), lock.hold(tmp_path / "lock"):
        raise UserError("no")
    assert (tmp_path / "lock").exists()
    with lock.hold(tmp_path / "other"), pytest.raises(UserError, match="busy"), lock.hold(tmp_path / "other", "busy"):
        pass
    assert (tmp_path / "other").exists(), "it is held by another"


def test_a_lock_ends_with_a_killed_process(tmp_path):
    code = """if True:
        import sys, time
        from pathlib import Path
        from bam_jax.system import lock
        with lock.hold(Path(sys.argv[1])):
            print("held", flush=True)
            time.sleep(600)
    """
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert lock.is_held(path)
        other.kill()
    assert not lock.is_held(path)
