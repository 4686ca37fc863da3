#!/usr/bin/env bash
# Trains or evaluates on the NVIDIA cards of this machine; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/gpu.sh --config CONFIG --workdir DIR [OPTION ...]
                          [-- CONFIG OVERRIDE ...]

Makes .venv in the checkout, installs atgrpo_jax with its gpu extra (skipped
where that is up to date) and runs the trainer: one process, which sees all
cards of this machine or those in CUDA_VISIBLE_DEVICES. Run it again to resume
a run that was stopped. It exits as the trainer does; 42 means that a signal
stopped it, after saving what there was.

  --config CONFIG   config file of the checkout and its arguments
  --workdir DIR     where the run is kept
  --mode MODE       train (default), evaluate, export, or doctor, which looks
                    whether the run could start, and times its programs
  --dry-run         print the commands and run none
  --help            print this

What follows -- goes to the trainer, for instance:

  bash launch/gpu.sh --config configs/plan_path.py:size=1.7b \
      --workdir runs/x -- --config.optimizer.learning_rate=1e-6
EOF
}

# The first driver that runs CUDA 13, which the gpu extra installs.
MIN_DRIVER=580

check_driver() {
  local driver
  command -v nvidia-smi > /dev/null ||
    stop 'nvidia-smi is not on the PATH; this needs an NVIDIA card and driver' \
      '(without one, launch/quickstart.sh runs the small model)'
  driver="$(
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1)" ||
    stop "nvidia-smi finds no card that works: ${driver//$'\n'/ }"
  [[ "${driver%%.*}" =~ ^[0-9]+$ ]] || stop "nvidia-smi says '$driver'"
  ((${driver%%.*} >= MIN_DRIVER)) ||
    stop "the NVIDIA driver is ${driver%%$'\n'*}, but CUDA 13 needs" \
      "$MIN_DRIVER or newer; update it, or install 'jax[cuda12]' into an" \
      'environment of your own and run python -m atgrpo_jax.main there'
}

parse_options '' '' "$@"
absolute_workdir "$PWD"  # The trainers start in the checkout.
"$dry_run" || check_driver
ensure_installed gpu
trainer_command cuda,cpu
run cd "$ROOT"
if "$dry_run"; then
  show "${command[@]}"
else
  say "running $(show "${command[@]}")"
  exec "${command[@]}"
fi
