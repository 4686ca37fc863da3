#!/usr/bin/env bash
# Trains or evaluates on the NVIDIA GPUs of this machine; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/gpu.sh --config CONFIG --workdir DIR [OPTION ...]
                          [-- CONFIG OVERRIDE ...]

Installs atgrpo_jax with its gpu extra into .venv and runs the trainer: one
process on all GPUs of this machine, or on those in CUDA_VISIBLE_DEVICES. Run it
again to resume. Needs a driver for CUDA 13 (580 or newer). The exit status is
the trainer's; 42 means that a signal stopped it.

  --config CONFIG   config file and its arguments
  --workdir DIR     folder of the run
  --mode MODE       train (default), evaluate, export or doctor
  --dry-run         print the commands without running them
  --help            print this

Example:

  bash launch/gpu.sh --config configs/plan_path.py:size=1.7b \
      --workdir runs/x -- --config.optimizer.learning_rate=1e-6
EOF
}

parse_trainer_options '' '' "$@"
resolve_workdir
ensure_installed gpu
check_trainer
trainer_command cuda,cpu
run cd "$ROOT"
"$dry_run" || say "running $(show "${command[@]}")"
run exec "${command[@]}"
