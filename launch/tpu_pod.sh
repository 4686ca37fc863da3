#!/usr/bin/env bash
# Trains on all workers of a TPU pod of Google Cloud; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_tpu.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/tpu_pod.sh --name NAME --zone ZONE --config CONFIG
                              --workdir DIR [OPTION ...]
                              [-- CONFIG OVERRIDE ...]

Creates a TPU pod, or takes the one of that name, and on all its workers copies
this checkout, installs atgrpo_jax with its tpu extra and runs the trainer in
the background; prints the log of worker 0 and copies the workdir back from
there. Needs Python 3.11, gcloud, logged in, and the ssh key of gcloud in an
ssh-agent (ssh-add ~/.ssh/google_compute_engine). Run it again to watch a run
in progress, or to resume one that was stopped. Exits as the trainer does: with
the status of the first worker that failed, or with 42 where a signal stopped
them, after saving what there was.

The workers all write their part of one checkpoint: DIR must be in a bucket, as
gs://bucket/folder, or an absolute path to a folder that they share, such as a
Filestore that --setup mounts on each, which is checked.

  --num-slices N           with --queued: so many pods of that type (slices),
                           named NAME-0, NAME-1, ...; only the axis data of the
                           mesh is split over them (default 1)
EOF
  tpu_options
  cat << 'EOF'
What follows -- goes to the trainer, for instance:

  bash launch/tpu_pod.sh --name pod --zone us-west4-a \
      --accelerator-type v5litepod-64 --delete \
      --config configs/plan_path.py:size=8b --workdir gs://bucket/runs/x \
      -- --config.seed=1

Two slices that may be taken away up to 50 times:

  bash launch/tpu_pod.sh --name pods --zone us-west4-a --queued --spot \
      --num-slices 2 --accelerator-type v5litepod-64 --retries 50 --delete \
      --setup 'sudo mkdir -p /mnt/nfs && sudo mount 10.0.0.2:/share /mnt/nfs' \
      --config configs/plan_path.py:size=8b --workdir /mnt/nfs/runs/x
EOF
}

run_on_tpu true "$@"
