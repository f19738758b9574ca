# All commands in one image. On a CPU, or with --build-arg EXTRA=cuda (or tpu) on an accelerator:
#
#   docker build -t bam_jax .
#   docker run --rm -v "$PWD":/work bam_jax train --config=configs/quickstart.py --workdir=runs/one
FROM python:3.12-slim
ARG EXTRA=
ENV PYTHONUNBUFFERED=1 UV_LINK_MODE=copy
WORKDIR /opt/bam_jax
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY bam_jax bam_jax
COPY configs configs
RUN pip install --no-cache-dir uv==0.13.8 \
    && uv sync --locked --no-cache --extra train --extra data --extra results --extra figures --extra tokenizers --extra gcs --extra s3 ${EXTRA:+--extra "$EXTRA"}
ENV PATH=/opt/bam_jax/.venv/bin:$PATH
# Runs are written into the folder that is mounted here.
WORKDIR /work
ENTRYPOINT ["bam-jax"]
CMD ["--help"]
