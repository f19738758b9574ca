"""Datasets that TensorFlow Datasets has prepared as array_record, read without TensorFlow."""

import functools
import re
from typing import Any

from bam_jax.data.sources.fragment import Fragment, Reading, decode
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.files import shortened, too_large

_PATH = re.compile(r"tfds:(?P<hub>huggingface:)?(?P<name>[^:]+)(?P<version>:[\d*][\d.*]*)?(:(?P<split>[^:]+))?")
_RECORDS = 2**14  # per fragment
_READ = 64  # records read at a time


def fragments(path: str, fields: tuple[str, ...], errors: str, max_bytes: int) -> list[Fragment]:
    """Ranges of the records of a prepared dataset, which must be where `tfds.load` looks for it.

    The path is tfds:NAME[:SPLIT] (default "train"). NAME is that in tensorflow_datasets (wiki40b/en:1.3.0), or huggingface:NAME.
    """
    parsed = _PATH.fullmatch(path)
    if parsed is None:
        raise UserError(f"{path} is not tfds:NAME[:VERSION][:SPLIT]; give for example tfds:wiki40b/en:train")
    builder = _builder(path, parsed)
    split = parsed["split"] or "train"
    if split not in builder.info.splits:
        raise UserError(f"{path} has no split '{split}'; its splits: {shortened(builder.info.splits)}")
    try:
        source = builder.as_data_source(split=split)
    except NotImplementedError as error:
        raise UserError(
            f"{path} is prepared as {builder.info.file_format.value}, which needs TensorFlow to be read; "
            f"prepare it as array_record: {_command(parsed)}"
        ) from error
    features = sorted(builder.info.features)
    for field in fields:
        if field not in features:
            raise UserError(
                f"{path} has no feature '{field}' (its features: {shortened(features)}); name another with --text-field"
            )
    info, total = builder.info.splits[split], len(source)
    bytes_before = lambda number: info.num_bytes * number // total

    def read(start: int, stop: int) -> Reading:
        for first in range(start, stop, _READ):
            numbers = range(first, min(first + _READ, stop))
            try:
                records = source.__getitems__(list(numbers))
            except RuntimeError as error:  # raised by array_record for damaged bytes
                raise UserError(
                    f"cannot read {path}: {' '.join(str(error).split())[:200]}; prepare it again"
                ) from error
            for number, record in zip(numbers, records, strict=True):
                where = f"{path} record {number}"
                texts = [record[field] for field in fields]
                if not all(isinstance(text, bytes) for text in texts):
                    raise UserError(
                        f"{where} has a feature among {', '.join(fields)} that is not text; name another with --text-field"
                    )
                if max(map(len, texts)) > max_bytes:
                    raise too_large(where, max_bytes)
                done = (bytes_before(stop) - bytes_before(start)) * (number + 1 - start) // (stop - start)
                yield tuple(decode(text, errors, where) for text in texts), done

    ranges = [(start, min(start + _RECORDS, total)) for start in range(0, total, _RECORDS)]
    name = f"{builder.info.full_name}:{split}"
    return [
        Fragment(f"{name}[{a}:{b}]", bytes_before(b) - bytes_before(a), functools.partial(read, a, b))
        for a, b in ranges
    ]


def _builder(path: str, parsed: re.Match[str]) -> Any:
    import_extra("tensorflow_datasets", path, "data")
    from tensorflow_datasets.core import read_only_builder
    from tensorflow_datasets.core.utils import conversion_utils

    name = parsed["name"]
    if parsed["hub"]:  # the name of its folder
        name = "/".join(map(conversion_utils.to_tfds_name, name.split("/")))
    try:
        # From its files: its code may need other packages and the network.
        return read_only_builder.builder_from_files(name + (parsed["version"] or ""))
    except (ValueError, FileNotFoundError) as error:  # no such folder, or an invalid name
        raise UserError(
            f"{path} is not among the prepared datasets (TFDS_DATA_DIR, or else ~/tensorflow_datasets); "
            f"prepare it: {_command(parsed)}"
        ) from error


def _command(parsed: re.Match[str]) -> str:
    name = f"{parsed['hub'] or ''}{parsed['name']}{parsed['version'] or ''}"
    return f"python -c \"import tensorflow_datasets as tfds, tensorflow_datasets.text; tfds.data_source('{name}')\""
