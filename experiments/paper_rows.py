"""The models of the two papers as rows of experiments, at the papers' scale and at two scales for a CPU.

Run one with `python -m bam_jax.sweep experiments/FILE.py --scale=toy`, then print its tables with `python -m bam_jax.tables` and
the same arguments. Verdicts come from the small scale (`small_scale.py`). The toy scale runs the same code in minutes: contexts
and lengths are an eighth (BAM) or a sixteenth (CABLE) of the paper's, and every corpus is replaced by Python's documentation in
characters with planted passkeys.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import small_scale
from paper_columns import CABLE_SHRINK, cable_perplexities, ruler, speed_benchmarks, tokens

from bam_jax.config import CONFIGS
from bam_jax.experiments.experiment import Column, Experiment, Fetch, Preparation, Row, Table, tabled
from bam_jax.system.errors import UserError

_SINUSOIDAL = {"encoding": "sinusoidal", "encoding_options.odd_cosines": True}
"""The cosines of the authors' code have exponents of their own, see `SinusoidalTable`."""
_SSMAX = {"ssmax": "on"}
_PLAIN = {"ssmax": "off"}
_ROPE = {"encoding": "rope", "encoding_options.base": 500_000.0}
_BAM = {"encoding": "bam", "encoding_options": {"init": "uniform"}}
BAM_METHODS: Mapping[str, Mapping[str, Any]] = {
    "Sinusoidal": {**_SINUSOIDAL, **_PLAIN},
    "NoPE": {"encoding": "nope", **_PLAIN},
    "ALiBi": {"encoding": "alibi", **_PLAIN},
    "RoPE": {**_ROPE, **_PLAIN},
    "RoPE Local": {**_ROPE, **_PLAIN},
    "BAM": {**_BAM, **_PLAIN},
    "Sinusoidal SSMax": {**_SINUSOIDAL, **_SSMAX},
    "NoPE SSMax": {"encoding": "nope", **_SSMAX},
    "ALiBi SSMax": {"encoding": "alibi", **_SSMAX},
    "RoPE SSMax": {**_ROPE, **_SSMAX},
    "RoPE SSMax x50": {**_ROPE, **_SSMAX},
    "RoPE SSMax x1": {**_ROPE, **_SSMAX},
    "BAM SSMax": {**_BAM, **_SSMAX},
}
"""BAM, section 3: what is trained. The three RoPE SSMax are one model, whose base is multiplied after training: by 100, as
appendix H.3 has it, by 50, as Nakanishi 2025 has it, and by 1. The paper does not say of which factor its other numbers are."""
SAME_TRAINING = {"RoPE Local": "RoPE", "RoPE SSMax x50": "RoPE SSMax", "RoPE SSMax x1": "RoPE SSMax"}
"""Methods that differ from another at evaluation alone."""

RATE = "optimizer.rate"
BAM_SIZES = ("120M", "432M", "1.1B")
_BAM_CONFIGS = dict(zip(BAM_SIZES, ("lm_120m.py", "lm_432m.py", "lm_1b.py"), strict=True))
_BAM_FINAL_RATES = dict(zip(BAM_SIZES, (1e-4, 5e-5, 3e-5), strict=True))
"""The rates at the end of training, a tenth of Table 1's."""
_BAM_TOY: Mapping[str, Mapping[str, Any]] = {
    "120M": {},
    "432M": {"model.width": 96, "model.heads": 6, "model.hidden": 192, "steps": 1000},
    "1.1B": {"model.layers": 3, "model.width": 128, "model.heads": 8, "steps": 1000},
}

CABLE_METHODS: Mapping[str, str] = {
    "CABLE": "cable",
    "CABLE_NW": "cable_nw",
    "ALiBi": "alibi",
    "Fire": "fire",
    "T5-bias": "t5_distance",
    "Kerple": "kerple_log",
    "RoPE": "rope",
    "Learnable": "learned",
    "Sinusoidal": "sinusoidal",
    "K-CABLE": "k_cable",
    "DAPEv2+Cable": "dape_cable",
    "DAPEv2+Kerple": "dape_kerple",
}
"""CABLE, section 4.3: names in `bam_jax.encodings.ENCODINGS`."""
_CABLE_STEPS = {"tiny": 9000, "small": 5000, "medium": 3000}
_CABLE_TOY = {
    "tiny": {"model.layers": 2, "model.width": 64, "model.heads": 4},
    "small": {"model.layers": 2, "model.width": 96, "model.heads": 6},
    "medium": {"model.layers": 3, "model.width": 128, "model.heads": 8},
}

FINEWEB, FINEWEB_EDU, WIKIPEDIA = "data/fineweb-10bt", "data/fineweb-edu-10bt", "data/wikipedia-en"
WIKITEXT, WIKITEXT_TEST = "data/wikitext-103", "data/wikitext-103-test"
_PREPARED: Mapping[str, tuple[str, ...]] = {
    FINEWEB: ("--preset=fineweb-10bt",),
    FINEWEB_EDU: ("--preset=fineweb-edu-10bt",),
    WIKIPEDIA: ("--preset=wikipedia-en", "--max-tokens=20000000"),
    WIKITEXT: ("--preset=wikitext-103",),
    WIKITEXT_TEST: ("--preset=wikitext-103", "--split=test"),
}

SCALE_NOTES = {
    "toy": "TOY SCALE: characters of Python's documentation and models of at most three layers. The columns keep the paper's "
    "names, with an eighth (BAM) or a sixteenth (CABLE) of their tokens; nothing here can be compared with the paper's values.",
    "small": "SMALL SCALE: models of 65,000 to 1.5 million parameters, eight training seeds a row, encoders twelve "
    "(docs/claims_protocol.md). They read planted keys, or one English text whatever the paper's corpus is; encoders read "
    "Python's documentation. The columns keep the paper's names, with an eighth (BAM, encoders) or a sixteenth (CABLE's "
    "decoders) of their tokens; what the paper says of methods can be held against these numbers, its values cannot.",
}


def bam(
    method: str,
    scale: str,
    *,
    label: str = "",
    size: str = "120M",
    context: int = 512,
    overrides: Mapping[str, Any] = {},
    changes: Mapping[str, Any] = {},
    text: bool = False,  # a claim is about its perplexity: at the small scale it learns from text only
    learner: str = "",  # its name in the small scale's search for rates; "": the method's
) -> Row:
    """A model of BAM's section 3 or appendices."""
    here = tokens(context, scale)
    own: Mapping[str, Mapping[str, Any]] = {
        "RoPE Local": {"encoding_options.window": here},
        "RoPE SSMax": {"encoding_options.base_scale": 100.0},
        "RoPE SSMax x50": {"encoding_options.base_scale": 50.0},
    }
    config = _BAM_CONFIGS[size] if scale == "paper" else "quickstart.py"
    every = {**BAM_METHODS[method], "context": here}
    if scale == "toy":
        every |= {**_BAM_TOY[size], "batch": 1024 // here}
        every |= {"optimizer.prior_rate": 20.0} if method.startswith("BAM") else {}
    elif scale == "small":
        every |= small_scale.bam_overrides(size, here, text=text)
        if RATE not in overrides:  # the search sets its own
            every |= small_scale.bam_rates(learner or SAME_TRAINING.get(method, method), size, text=text)
    else:
        every |= {"data.source": FINEWEB, "model.vocab": 32_768, "batch": 589_824 // here}
    changes = {**own.get(method, {}), **changes}
    return Row(label or method, str(CONFIGS / config), {**every, **overrides}, _seeds(scale), changes=changes)


def bam_extended(
    method: str,
    scale: str,
    start: str,
    *,
    label: str,
    size: str,
    overrides: Mapping[str, Any] = {},
    changes: Mapping[str, Any] = {},
) -> Row:
    """256 further steps at context 1024 of a model trained at 512, at the rate that its training ended with.

    Source: BAM, appendices C and H.5; the rate is ours.
    """
    row = bam(method, scale, label=label, size=size, context=1024, overrides=overrides, changes=changes)
    ended = {"toy": 3e-4, "paper": _BAM_FINAL_RATES[size]}
    further = {
        "steps": 256 if scale == "paper" else 40,
        "checkpoint_every": 64,
        # At the small scale, a tenth of the chosen rate, where the cosine schedule ends.
        RATE: row.overrides[RATE] / 10 if scale == "small" else ended[scale],
        "optimizer.final": 1.0,
        "optimizer.warmup": 0,
    }
    return dataclasses.replace(row, overrides={**row.overrides, **further}, start=start)


def both_bases(values: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The values of a table, with an unprinted row of RoPE SSMax whose base is multiplied by 50; its own have the factor 100."""
    return {**values, "RoPE SSMax x50": ()}


def extended_rows(scale: str, *, overrides: Mapping[str, Any] = {}) -> list[Row]:
    """BAM SSMax and RoPE SSMax of 1.1B, extended to context 1024, RoPE SSMax with `both_bases`; and the two as they start."""
    starts = {"BAM SSMax": "BAM SSMax, 512", "RoPE SSMax": "RoPE SSMax, 512", "RoPE SSMax x50": "RoPE SSMax, 512"}
    return [
        *(
            bam(method, scale, label=starts[method], size="1.1B", overrides=overrides)
            for method in ("BAM SSMax", "RoPE SSMax")
        ),
        *(
            bam_extended(method, scale, start, label=method, size="1.1B", overrides=overrides)
            for method, start in starts.items()
        ),
    ]


def cable(
    method: str,
    scale: str,
    *,
    label: str,
    size: str,
    corpus: str,
    context: int = 1024,
    overrides: Mapping[str, Any] = {},
) -> Row:
    """A GPT-2 of CABLE's section 4."""
    here = tokens(context, scale, CABLE_SHRINK)
    every: dict[str, Any] = {"encoding": CABLE_METHODS[method], "context": here}
    if scale == "toy":
        every |= {**_CABLE_TOY[size], "model.hidden": 256, "model.remat": False, "data.tokenizer": "char"}
        every |= {"data.holdout": 0.1, "batch": 1024 // here, "optimizer.accumulate": 1}
        every |= {RATE: 0.003, "optimizer.warmup": 30, "steps": 300}
    elif scale == "small":
        every |= small_scale.cable_overrides(size, here)
        if RATE not in overrides:
            every |= small_scale.chosen_rates(small_scale.learner(method, small_scale.GPT2))
    else:
        every |= {"data.source": corpus, "model.vocab": 50_304, "batch": 524_288 // here}
        if corpus == WIKITEXT:
            every |= {"data.held_out_source": WIKITEXT_TEST, "steps": _CABLE_STEPS[size]}
    return Row(label, str(CONFIGS / f"gpt2_{size}.py"), {**every, **overrides}, _seeds(scale))


def _seeds(scale: str) -> tuple[int, ...]:
    return small_scale.SEEDS if scale == "small" else (0,)


def printed(text: str, *, transpose: bool = False) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """A table as printed in a paper, cells between bars: the heads of its columns, and its rows by their labels.

    >>> printed("| length | CABLE | RoPE |\\n| 512 | 17.00 | 17.39 |", transpose=True)
    (('512',), {'CABLE': ('17.00',), 'RoPE': ('17.39',)})
    """
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().splitlines()]
    for line in lines:
        if len(line) != len(lines[0]):
            raise UserError(f"row {line[0]!r} has {len(line)} cells and the heads {len(lines[0])}")
    if transpose:
        lines = [list(column) for column in zip(*lines, strict=True)]
    labels = [line[0] for line in lines[1:]]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"two rows are called {label!r}")
    return tuple(lines[0][1:]), {line[0]: tuple(line[1:]) for line in lines[1:]}


def paper(
    title: str,
    scale: str,
    rows: Sequence[Row],
    tables: Sequence[Table],
    *,
    fetches: Sequence[Fetch] = (),
    preparations: Sequence[Preparation | Fetch] = (),
    notes: Sequence[str] = (),
) -> Experiment:
    """The experiment of a table or figure; at the paper's scale the corpora that its trained rows read are prepared first."""
    own = scale == "paper"
    notes = notes if own else (SCALE_NOTES[scale], *notes)
    made = tabled(title, rows, tables, notes=tuple(notes), comparable=own, scale="" if own else scale)
    trained = [row for row in made.rows if row.train]
    changes = [row.overrides for row in trained]
    changes += [evaluation.overrides for row in trained for evaluation in row.evaluations]
    read = {each.get(name) for each in changes for name in ("data.source", "data.held_out_source")}
    corpora = [
        Preparation("bam_jax.data.prepare", (*arguments, f"--out={corpus}"))
        for corpus, arguments in _PREPARED.items()
        if corpus in read
    ]
    return dataclasses.replace(
        made,
        platform="cpu" if scale == "toy" else "",
        preparations=(*(fetches if own else ()), *preparations, *corpora),
        benchmarks=tuple(speed_benchmarks(rows, tables)),
    )


def ruler_tables(table: str, texts: Mapping[str, str], scale: str) -> list[Table]:
    """The tables of RULER's needles: of each task, such as "Single 1", a text with a line for each method; see `printed`."""
    tables = []
    for title, text in texts.items():
        heads, values = printed(text)
        task = f"niah_{title.lower().replace(' ', '_')}"
        lengths = (int(1024 * float(head[:-1])) if head.endswith("K") else int(head) for head in heads)
        columns = tuple(ruler(head, length, task, scale) for head, length in zip(heads, lengths, strict=True))
        tables.append(Table(f"{table}, {title}: accuracy", columns, both_bases(values)))
    return tables


def cable_tables(
    table: str, parts: Sequence[tuple[str, str, str, str]], scale: str, *, notes: Sequence[str] = (), repeats: str = ""
) -> Experiment:
    """The experiment of one of CABLE's tables of perplexities: a row for each method, a column for each length."""
    rows: list[Row] = []
    tables = []
    for text, group, size, corpus in parts:
        lengths, values = printed(text, transpose=True)
        columns = cable_perplexities(lengths, scale)
        if repeats and scale == "small":
            columns = tuple(Column(length, missing=repeats) for length in lengths)
        tables.append(Table(f"{table}, {group}: perplexity", columns, values, group=group))
        rows += [cable(method, scale, label=f"{method}, {group}", size=size, corpus=corpus) for method in values]
    return paper(f"CABLE, {table}: perplexity", scale, rows, tables, notes=notes)
