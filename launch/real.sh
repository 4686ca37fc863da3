#!/usr/bin/env bash
# Trains a pair of SmolLM2 writers on a CPU; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/real.sh [OPTION ...] [-- CONFIG OVERRIDE ...]

Installs atgrpo_jax into .venv (skipped if that is up to date), downloads
SmolLM2-135M-Instruct (93 MB) into .cache/smollm2, trains one adapter of it for
each of two writers on passages of the World Factbook, and prints the return on
held-out passages before and after. Needs Python 3.11 or newer (PYTHON names
one), 5 GiB of memory and, the first time, a package index. Run it again to
resume.

  --seed N        seed of the run (default 0)
  --workdir DIR   folder of the run (default runs/real-seed-N)
  --help          print this

Example:

  bash launch/real.sh --seed 1 -- --config.KEY=VALUE
EOF
}

# A second device would hold another copy of the model.
export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-1}"
prepare_cpu_run real gguf,factbook "$@"
"$VENV/bin/python" -m models.smollm2 --out .cache/smollm2
train_on_cpu \
  --config configs/writing.py:kind=factbook,size=135m,system=magrpo_cross
