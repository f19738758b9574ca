"""Datasets prepared by TensorFlow Datasets, without TensorFlow and without their code."""

import shutil
import sys
import warnings

import pytest

from bam_jax.data.sources.source import Source
from bam_jax.system.errors import UserError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        class Small(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")
            BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=n, version="1.0.0") for n in ("en", "de_1"))

            def _info(self):
                texts = {"text": tfds.features.Text(), "title": tfds.features.Text()}
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(texts))

            def _split_generators(self, download):
                return {"train": self._generate_examples(300), "validation": self._generate_examples(2)}

            def _generate_examples(self, count):
                for number in range(count):
                    yield number, {"text": f"text {number} é", "title": f"{self.builder_config.name} {number}"}

        Small.name = "small__texts"
        for name in ("en", "de_1"):
            Small(config=name, data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture
def there(prepared, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.utils.file_utils, "_REGISTERED_DATA_DIRS", {prepared})
    return prepared


def read(path, *fields):
    return [record for part in Source(path, fields or ("text",)).fragments() for record, _ in part.read()]


def test_splits_and_configurations(there, monkeypatch):
    monkeypatch.setattr("bam_jax.data.sources.tfds._RECORDS", 128)
    records = read("tfds:small__texts/en", "text", "title")
    assert sorted(records) == sorted((f"text {n} é", f"en {n}") for n in range(300))
    assert records == read("tfds:small__texts/en:train", "text", "title")
    parts = Source("tfds:small__texts/en").fragments()
    ranges = ("0:128", "128:256", "256:300")
    assert [part.name for part in parts] == [f"small__texts/en/1.0.0:train[{each}]" for each in ranges]
    for part in parts:
        done = [size for _, size in part.read()]
        assert done == sorted(done) and done[-1] == part.size
    assert len(read("tfds:small__texts/de_1:1.0.0:validation")) == 2
    assert len(read("tfds:huggingface:Small__Texts/de-1:validation")) == 2
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("tfds:lm1b", r"is not among the prepared datasets .*tfds.data_source\('lm1b'\)"),
        ("tfds:huggingface:a/b:test", r"is not among the prepared .*tfds.data_source\('huggingface:a/b'\)"),
        ("tfds:a:b:c", r"is not tfds:NAME\[:VERSION\]\[:SPLIT\]"),
        ("tfds:small__texts/en:test", "has no split 'test'; its splits: train, validation"),
        ("tfds:small__texts/en", r"has no feature 'body' \(its features: text, title\)"),
        ("tfds:small__texts/de_1", "is prepared as tfrecord, .*prepare it as array_record: python -c"),
    ],
)
def test_what_is_not_there_or_needs_tensorflow(there, tmp_path, monkeypatch, path, says):
    import tensorflow_datasets as tfds

    shutil.copytree(there, tmp_path / "data")
    info = tmp_path / "data" / "small__texts" / "de_1" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    monkeypatch.setattr(tfds.core.utils.file_utils, "_REGISTERED_DATA_DIRS", {tmp_path / "data"})
    with pytest.raises(UserError, match=says):
        read(path, "body")
