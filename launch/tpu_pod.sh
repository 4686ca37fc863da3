#!/usr/bin/env bash
# Trains on all workers of an existing TPU; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/tpu_pod.sh --name NAME --zone ZONE --config CONFIG
                              --workdir gs://BUCKET/DIR [OPTION ...]
                              [-- CONFIG OVERRIDE ...]
       bash launch/tpu_pod.sh --name NAME --zone ZONE --follow
       bash launch/tpu_pod.sh --name NAME --zone ZONE --stop

Installs atgrpo_jax into .venv and checks the config, copies this checkout to all
workers of a TPU VM or pod that exists, installs atgrpo_jax with its tpu extra
there, starts the trainer in the background, and follows its log. Ctrl-C ends the
following, not the run. Needs gcloud, logged in. launch/sky_tpu.yaml creates a
TPU and survives preemption.

  --name NAME         name of the TPU
  --zone ZONE         its zone, such as us-west4-a
  --project PROJECT   its project (default: gcloud's)
  --config CONFIG     config file and its arguments
  --workdir DIR       folder of the run: in a bucket, as gs://BUCKET/DIR, or the
                      absolute path of a folder that all workers share, which
                      is not in your home folder
  --mode MODE         train (default), evaluate, export or doctor
  --follow            follow the log of a run that was started before
  --stop              ask the trainers to save and stop
  --dry-run           print the commands without running them
  --help              print this

Run it again to resume. Compiled programs are kept in DIR/jax_cache. If HF_TOKEN is
set, the workers get it in a file. Folders models/Qwen... are not copied. Example:

  gcloud compute tpus tpu-vm create pod --zone us-west4-a \
      --accelerator-type v5litepod-16 --version v2-alpha-tpuv5-lite
  bash launch/tpu_pod.sh --name pod --zone us-west4-a \
      --config configs/plan_path.py:size=1.7b --workdir gs://bucket/runs/x
EOF
}

name='' zone='' project='' follow=false stop=false
if [[ " $* " == *' --follow '* || " $* " == *' --stop '* ]]; then
  parse_options 'name zone project' 'follow stop dry-run' "$@"
else
  parse_trainer_options 'name zone project' 'follow stop' "$@"
  [[ "$workdir" == /* || "$workdir" == gs://* ]] ||
    stop "--workdir is '$workdir', but all workers write to it; give" \
      'gs://BUCKET/DIR, or the absolute path of a shared folder'
  [[ "$config" != /* ]] ||
    stop "--config is '$config', but must be a file of the checkout, which is" \
      'copied to the workers'
  check_shared /tmp /var/tmp /dev/shm "$HOME" "$ROOT"
fi
[[ -n "$name" ]] || stop '--name is missing; give the name of the TPU'
[[ -n "$zone" ]] || stop '--zone is missing; give one such as us-west4-a'
"$dry_run" || command -v gcloud > /dev/null ||
  stop 'gcloud is not on the PATH; install the Google Cloud CLI'

where=(--worker=all --zone="$zone" ${project:+--project="$project"})

# on_workers COMMAND: runs a shell command on all workers.
on_workers() {
  run gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --command="$1"
}

if "$stop"; then
  # shellcheck disable=SC2016  # The workers expand it.
  on_workers 'kill -TERM "$(cat atgrpo_jax.pid)"'
  exit
fi
if ! "$follow"; then
  ensure_installed ''
  check_trainer
  archive="$ROOT/.cache/atgrpo_jax.tgz"
  run mkdir -p "$ROOT/.cache"
  run tar -czf "$archive" -C "$ROOT" --exclude=./.git --exclude=./.venv \
    --exclude=./.cache --exclude=./runs --exclude='./models/Qwen*' .
  run gcloud compute tpus tpu-vm scp "$archive" "$name": "${where[@]}"
  on_workers 'mkdir -p atgrpo_jax && tar -xzf atgrpo_jax.tgz -C atgrpo_jax &&
    cd atgrpo_jax && python3 -m pip install --quiet uv &&
    python3 -m uv venv --quiet --allow-existing --python 3.12 .venv &&
    python3 -m uv pip install --quiet --python .venv/bin/python -e ".[tpu]"'
  if [[ -n "${HF_TOKEN:-}" ]]; then
    token="$(mktemp)"  # Other users can read command lines.
    trap 'rm -f "$token"' EXIT
    printf %s "$HF_TOKEN" > "$token"
    on_workers 'mkdir -p .cache/huggingface'
    run gcloud compute tpus tpu-vm scp "$token" \
      "$name:.cache/huggingface/token" "${where[@]}"
    rm "$token"
  fi
  # The workers get no repository.
  commit="$(git -C "$ROOT" describe --always --dirty --abbrev=40 --exclude='*' \
    2> /dev/null || true)"
  command=(env PYTHONUNBUFFERED=1 'JAX_PLATFORMS=tpu,cpu'
    "SOURCE_COMMIT=$commit"
    "JAX_COMPILATION_CACHE_DIR=$workdir/jax_cache"
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
    .venv/bin/python -m atgrpo_jax.main --distributed
    --workdir "$workdir" "${trainer[@]}")
  # shellcheck disable=SC2016  # The workers expand it.
  on_workers 'cd atgrpo_jax && { nohup '"$(show "${command[@]}")"' \
    > ../atgrpo_jax.log 2>&1 < /dev/null & echo "$!" > ../atgrpo_jax.pid; }'
fi
# shellcheck disable=SC2016  # The workers expand it.
on_workers 'tail -n +1 -F --pid="$(cat atgrpo_jax.pid)" atgrpo_jax.log'
