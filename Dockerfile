# The trainer, for CPUs or NVIDIA GPUs:
#
#   docker build --tag atgrpo_jax \
#       --build-arg SOURCE_COMMIT="$(git rev-parse HEAD)" .
#   docker build --tag atgrpo_jax:gpu --build-arg EXTRA=gpu .
#   docker run --rm --gpus all -v "$PWD/runs:/runs" atgrpo_jax:gpu \
#       --config configs/plan_path.py:size=1.7b --workdir /runs/x
#
# EXTRA names extras of setup.py, separated by commas. CUDA comes with the wheels
# of the extra gpu; the driver of the machine must be 580 or newer.
FROM python:3.12-slim
ARG EXTRA=
ARG SOURCE_COMMIT=

ENV PYTHONUNBUFFERED=1 SOURCE_COMMIT=$SOURCE_COMMIT \
    TFDS_DATA_DIR=/runs/cache/datasets \
    JAX_COMPILATION_CACHE_DIR=/runs/cache/jax \
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
WORKDIR /atgrpo_jax
COPY . .
RUN pip install --no-cache-dir --editable ".${EXTRA:+[$EXTRA]}"

ENTRYPOINT ["python", "-m", "atgrpo_jax.main"]
