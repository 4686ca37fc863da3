#!/usr/bin/env bash
# Trains a team of two agents on Plan-Path, on a CPU; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/quickstart.sh [OPTION ...] [-- CONFIG OVERRIDE ...]

Installs atgrpo_jax into .venv (skipped if that is up to date), trains a small
two-agent team on Plan-Path, and prints its held-out success before and after.
Needs Python 3.11 or newer (PYTHON names one) and, the first time, a package
index. Run it again to resume.

  --seed N        seed of the run (default 0)
  --workdir DIR   folder of the run (default runs/quickstart-seed-N)
  --help          print this

Example:

  bash launch/quickstart.sh --seed 1 -- --config.KEY=VALUE
EOF
}

parse_cpu_options quickstart '' "$@"
install_for_cpu ''
train_on_cpu --config configs/quickstart.py
