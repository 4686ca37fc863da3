#!/usr/bin/env bash
# Trains on one TPU VM of Google Cloud; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_tpu.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/tpu_vm.sh --name NAME --zone ZONE --config CONFIG
                             --workdir DIR [OPTION ...]
                             [-- CONFIG OVERRIDE ...]

Creates a TPU VM with one worker, or takes the one of that name, copies this
checkout to it, installs atgrpo_jax with its tpu extra, runs the trainer in the
background, prints its log, and copies the workdir back. Needs Python 3.11 and
gcloud, logged in, with an ssh key that asks for nothing. Run it again to watch
a run in progress, or to resume one that was stopped. Exits as the trainer
does; 42 means that a signal stopped it, after saving what there was.

DIR is on the TPU VM, in the home folder unless absolute: who deletes the TPU
VM deletes it, if it is on its disk.

EOF
  tpu_options
  cat << 'EOF'
What follows -- goes to the trainer, for instance:

  bash launch/tpu_vm.sh --name mine --zone us-west4-a \
      --accelerator-type v5litepod-8 --delete \
      --config configs/plan_path.py:size=1.7b --workdir runs/x \
      -- --config.seed=1
EOF
}

run_on_tpu false "$@"
