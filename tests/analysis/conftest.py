"""Small models as they begin."""

import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory, write_initial):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)

    def save(name, encoding, causal=True, **fields):
        model = {"layers": 2, "heads": 4, "causal": causal}
        data = {"source": str(folder / "text.txt"), "tokenizer": "char"}
        return write_initial(folder / name, encoding=encoding, context=24, model=model, data=data, **fields)

    return {
        "bam": save("bam", "bam", ssmax="on", encoding_options={"init": "spread", "spread": 2.0}),
        "alibi": save("alibi", "alibi", ssmax="off"),
        "encoder": save("encoder", "nope", causal=False, ssmax="off"),
    }
