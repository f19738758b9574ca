import threading
import time

import pytest

from bam_jax.system import bucket, files
from bam_jax.system.bucket import Bucket, Lease
from bam_jax.system.errors import UserError


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bucket, "BEAT", 0.2)
    monkeypatch.setattr(bucket, "DEAD", 1.5)
    monkeypatch.setattr(bucket, "_POLL", 0.05)


def test_what_is_uploaded_is_listed_downloaded_and_removed(folder_in_bucket, tmp_path):
    found = Bucket(folder_in_bucket)
    assert found.is_empty() and found.find() == {} and found.read("a") is None
    contents = {"a": b"", "below/b": b"b" * 7, "below/deep/c": bytes(6_000_000), "belowing": b"x"}
    for name, content in contents.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_bytes(content)
    found.upload(tmp_path / "here", [*contents])
    assert {name: each.size for name, each in found.find().items()} == {name: len(x) for name, x in contents.items()}
    assert [*found.find("below")] == ["below/b", "below/deep/c"] and not found.is_empty()
    for name in contents:
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
    found.download([*contents], tmp_path / "there")
    assert {name: (tmp_path / "there" / name).read_bytes() for name in contents} == contents
    before = found.find()["below/b"]
    found.write("below/b", b"B" * 7)
    assert found.find()["below/b"] != before and found.read("below/b") == b"B" * 7
    found.remove([name for name in contents if name != "a"])
    assert [*found.find()] == ["a"]
    assert files.matching(f"{folder_in_bucket}/*") == [f"{folder_in_bucket}/a"]


def test_one_of_many_creates_an_object(folder_in_bucket):
    found, made = Bucket(folder_in_bucket), []
    threads = [threading.Thread(target=lambda n=n: made.append(found.create("x", b"%d" % n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 5 + [True]


def test_a_lease_is_held_by_one_and_free_after_it(folder_in_bucket, quick):
    found = Bucket(folder_in_bucket)
    with Lease(found, "busy") as lease:
        with pytest.raises(UserError, match="^busy$"), Lease(found, "busy"):
            pass
        lease.check()
        assert found.is_empty()  # it does not count
    start = time.monotonic()
    with Lease(found, "busy"):
        assert time.monotonic() - start < bucket.DEAD
    assert {name: each.size for name, each in found.find().items()} == {".lease/2": 0}


@pytest.mark.parametrize("folder_in_bucket", ["s3"], indirect=True)
def test_the_lease_of_a_killed_process_is_taken_over_and_one_that_wakes_up_notices(
    folder_in_bucket, quick, monkeypatch
):
    found = Bucket(folder_in_bucket)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "_live", lambda self: None)  # as if it were cut off
        silent = Lease(found, "busy").__enter__()
    taken, both = [], threading.Barrier(2)

    def take():
        both.wait()
        try:
            with Lease(found, "busy") as lease:
                taken.append(lease)
                both.wait()
        except UserError:
            both.wait()

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not taken:
        time.sleep(0.05)
    with pytest.raises(UserError, match="another process took over .*; let the other one continue"):
        silent.check()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    silent.__exit__()
    assert {name: each.size for name, each in found.find().items()} == {".lease/2": 0}
    silent._bucket.write(".lease/1", silent._contents(9))  # as one that wakes up in the midst of a renewal
    with pytest.raises(bucket.Replaced):
        silent.check()


def test_a_bucket_that_is_not_there_is_one_line(folder_in_bucket):
    wrong = folder_in_bucket.replace("bucket-of", "no-bucket-of")
    for act in (lambda: Bucket(wrong).write("x", b"1"), lambda: Bucket(wrong).create("x", b"1")):
        with pytest.raises(UserError, match=f"cannot write {wrong}: .*; see that it exists") as error:
            act()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("folder_in_bucket", ["s3"], indirect=True)
def test_a_name_that_leads_out_of_the_folder_is_refused(folder_in_bucket):
    Bucket(folder_in_bucket).write("a/../../b", b"1")
    Bucket(f"{folder_in_bucket}/a").write("", b"")  # made by a console for an empty folder
    with pytest.raises(UserError, match=r"contains an object named 'a/\.\./\.\./b', not a valid file name"):
        Bucket(folder_in_bucket).find()
