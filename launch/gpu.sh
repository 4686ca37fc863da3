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
again to resume. The exit status is the trainer's; 42 means that a signal
stopped it after it had saved.

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

MIN_DRIVER=580  # The first driver for CUDA 13, which the gpu extra installs.

check_driver() {
  local driver
  command -v nvidia-smi > /dev/null ||
    stop 'nvidia-smi is not on the PATH; this needs an NVIDIA GPU and driver' \
      '(launch/quickstart.sh runs a small model without one)'
  driver="$(
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1)" ||
    stop "nvidia-smi finds no working GPU: ${driver//$'\n'/ }"
  [[ "${driver%%.*}" =~ ^[0-9]+$ ]] || stop "nvidia-smi printed '$driver'"
  ((${driver%%.*} >= MIN_DRIVER)) ||
    stop "the NVIDIA driver is ${driver%%$'\n'*}, but CUDA 13 needs" \
      "$MIN_DRIVER or newer; update it, or install 'jax[cuda12]' into another" \
      'environment and run python -m atgrpo_jax.main there'
}

parse_trainer_options '' '' "$@"
resolve_workdir
"$dry_run" || check_driver
ensure_installed gpu
trainer_command cuda,cpu
run cd "$ROOT"
"$dry_run" || say "running $(show "${command[@]}")"
run exec "${command[@]}"
