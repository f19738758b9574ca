"""The commit that a record names."""

from bam_jax.system import git


def test_the_commit_is_that_of_the_code():
    described = git.describe()
    assert described is None or len(described.removesuffix("-dirty")) >= 7
