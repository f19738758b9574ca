"""The adapter for the LM Evaluation Harness: a model with the harness's interface, and the harness's tasks over local files.

It imports lm_eval, which is large. Prompts, few-shot examples, answers and metrics are upstream's; reading of files,
tokenisation, batches and truncation are ours.
"""

import contextlib
import functools
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from bam_jax.data.tasks import benchmarks
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.evals.likelihood import Request, score
from bam_jax.models.transformer import Decoder

FOLDERS = ("arc", "hellaswag", "longbench2", "mmlu/default", "wikitext")
"""Folders of lm_eval's tasks: searching all of them would take seconds."""


class Adapter(TemplateLM):
    """A decoder that answers requests with texts.

    A request that is longer than the budget is cut in the middle. An empty context becomes the end token, or a newline if the
    tokenizer has no end token.

    Args:
        budget: maximum number of tokens that are read.
        memory: for activations, bytes.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, *, budget: int, memory: float) -> None:
        super().__init__()
        self._decoder, self._tokens, self._budget, self._memory = decoder, tokenizer, budget, memory
        self._ids = functools.lru_cache(maxsize=64)(lambda text: tokenizer.encode(text).tolist())
        self.cut = 0  # requests that were longer than the budget

    @property
    def eot_token_id(self) -> int:
        return self._ids("\n")[0] if self._tokens.eos is None else self._tokens.eos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **others: Any) -> list[int]:
        return list(self._ids(string))

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """For requests (context, continuation), the continuation's log-likelihood in nats, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def fits(self, context: str, continuation: str) -> bool:
        """True if a request is not cut; its tokens are those of `loglikelihood`."""
        return self._fits(*self._encode_pair(context, continuation))

    def _fits(self, context: Sequence[int], continuation: Sequence[int]) -> bool:
        return len(context) + len(continuation) - 1 <= self._budget

    def _loglikelihood_tokens(self, requests: Sequence[Any], **others: Any) -> list[tuple[float, bool]]:
        asked = [Request(np.array(context), np.array(continuation)) for _, context, continuation in requests]
        self.cut += sum(not self._fits(context, continuation) for _, context, continuation in requests)
        return score(self._decoder, asked, budget=self._budget, memory=self._memory)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        """For requests (text,), the log-likelihood in nats, in full windows; each token is predicted once."""
        windows: list[Request] = []
        counts = []
        for (text,) in (request.args for request in requests):
            found = get_rolling_token_windows(self.tok_encode(text), self.eot_token_id, self._budget, context_len=1)
            pairs = [make_disjoint_window(pair) for pair in found]
            windows += [Request(np.array(context), np.array(continuation)) for context, continuation in pairs]
            counts.append(len(pairs))
        scores = score(self._decoder, windows, budget=self._budget, memory=self._memory)
        ends = np.cumsum(counts, dtype=int)
        return [sum(nats for nats, _ in scores[end - count : end]) for end, count in zip(ends, counts, strict=True)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        raise NotImplementedError  # No task of `benchmarks.TASKS` generates text.


class Local(ConfigurableTask):
    """A task of the harness whose records are read by `bam_jax.data.tasks.benchmarks`; the folder is in its metadata.

    Only the splits that are needed are read: without shots, the one with the questions.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        config = {name: value for name, value in config.items() if name != "class"}
        if not config["num_fewshot"]:
            asked = "test_split" if config["test_split"] else "validation_split"
            others = {"training_split", "validation_split", "test_split", "fewshot_split"} - {asked}
            config |= dict.fromkeys(others)
        super().__init__(config=config)

    def download(self, dataset_kwargs: Mapping[str, Any] | None = None, **others: Any) -> None:
        config = self.config
        splits = (config.training_split, config.validation_split, config.test_split, config.fewshot_split)
        records = {
            split: benchmarks.read(config.metadata["data"], config.dataset_path, config.dataset_name, split)
            for split in dict.fromkeys(splits)
            if split
        }
        text = json.dumps(records, sort_keys=True)
        self.hash = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self.dataset = {split: datasets.Dataset.from_list(found) for split, found in records.items()}

    def build_all_requests(self, **options: Any) -> None:
        # Without a progress bar for each task.
        with contextlib.redirect_stderr(io.StringIO()):
            super().build_all_requests(**options)


def manager(data: str) -> lm_eval.tasks.TaskManager:
    """The harness's definitions of the tasks that are known here."""
    root = Path(lm_eval.tasks.__file__).parent
    paths = [root / folder for folder in FOLDERS]
    return lm_eval.tasks.TaskManager(include_path=paths, include_defaults=False, metadata={"data": data})


def load(names: Sequence[str], data: str, shots: int) -> dict[str, Local]:
    """Tasks of the harness, ready to be asked."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it logs its default assumptions for each task
    datasets.disable_progress_bars()
    asked = [{"task": name, "class": Local, "num_fewshot": shots} for name in names]
    found = manager(data).load({"group": "asked", "task": asked})["tasks"]
    for task in found.values():
        task.set_fewshot_seed(0)
    return {name: found[name] for name in names}
