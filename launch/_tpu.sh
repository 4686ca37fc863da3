# Sourced by tpu_vm.sh and tpu_pod.sh: their options. What they do is in _tpu.py.
# shellcheck shell=bash
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

tpu_options() {
  cat << 'EOF'
  --name NAME              name of the TPU VM
  --zone ZONE              its zone, such as us-west4-a
  --project PROJECT        its project (default: gcloud's)
  --accelerator-type TYPE  what to create if there is no such TPU VM, such as
                           v5litepod-8
  --version VERSION        software version to create it with (default: the one
                           for its type)
  --spot                   create a spot TPU VM, which may be taken away
  --queued                 create it by a queued resource of that name, which
                           waits until there is one
  --valid-until WHEN       with --queued: give up waiting then; 6h, or a time
                           such as 2030-01-31T18:00:00Z
  --retries N              how often to try again if the TPU VM cannot be had,
                           is taken away or cannot be reached: what is left of
                           it is deleted, and the run resumes on another one
                           (default 0)
  --poll-seconds N         how often to look whether it is there (default 30)
  --setup COMMAND          shell command for each worker, in the checkout, after
                           the installation; such as one that mounts a folder
                           or downloads a model
  --config CONFIG          config file of the checkout and its arguments
  --workdir DIR            where the run is kept: on the TPU VM, or in a bucket,
                           as gs://bucket/folder
  --collect DIR            folder of this machine to copy the workdir, unless it
                           is in a bucket, and the logs into (default runs/NAME
                           in the checkout)
  --mode MODE              train (default), evaluate, export or doctor
  --stop                   ask a run in progress to save and stop; do no more
  --delete                 delete the TPU VM once a run that has ended well is
                           collected
  --dry-run                print the commands and run none
  --help                   print this

Ctrl-C ends the watching, not the run. If a step fails and is not tried again,
the TPU VM is left as it is, and so costs money. What each attempt took is
printed at the end, and kept in attempts.tsv in the folder of --collect, with
the log that was watched; DIR.logs has the logs of all workers that could still
write them (with a bucket, each has its own in runs/ of its checkout).

With --retries, DIR must outlive the TPU VM: gs://bucket/folder, or an absolute
path to a folder that --setup mounts, such as a Filestore share. It is refused
where it is on the TPU VM's own disk. With a notice (Google speaks of 30
seconds) the trainer drops what it plays, finishes an update and saves; where
that takes longer, or without a notice, the run resumes from the checkpoint
before.

HF_TOKEN and HF_HOME are passed on to the workers; HF_HOME must be a path that
can be made there. Folders named Qwen... in models/ are not copied to the TPU
VM, being large: download them there, as in
  --setup '.venv/bin/hf download Qwen/Qwen3-1.7B --local-dir models/Qwen3-1.7B'

EOF
}

# run_on_tpu POD ARGUMENT ...: all of it; POD is true for several workers.
run_on_tpu() {
  local pod="$1" values
  shift
  name='' zone='' project='' accelerator_type='' version='' setup='' collect=''
  num_slices=1 valid_until='' retries=0 poll_seconds=30
  spot=false queued=false stop=false delete=false
  values='name zone project accelerator-type version valid-until retries'
  values+=' poll-seconds setup collect'
  ! "$pod" || values+=' num-slices'
  parse_options "$values" 'spot queued stop delete' "$@"

  [[ -n "$name" ]] || stop '--name is missing; give the name of the TPU VM'
  [[ "$name" =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    stop "--name is '$name', but may hold only small letters, digits and -"
  [[ -n "$zone" ]] || stop '--zone is missing; give one such as us-west4-a'
  if [[ -n "$accelerator_type" ]]; then
    [[ "$accelerator_type" =~ ^(v[0-9]+[a-z]*|tpu[0-9]+[a-z]*)-([0-9]+)$ ]] ||
      stop "--accelerator-type is '$accelerator_type', but must be a type and" \
        'a size, such as v5litepod-8'
    "$pod" || ((BASH_REMATCH[2] <= 8)) ||
      stop "--accelerator-type is '$accelerator_type', which has several" \
        'workers; use launch/tpu_pod.sh'
  fi
  [[ "$config" != /* ]] ||
    stop "--config is '$config', but must be a file of the checkout, which is" \
      'what is copied to the TPU VM'
  [[ "$workdir" =~ ^(gs://)?[A-Za-z0-9_./-]+$ ]] ||
    stop "--workdir is '$workdir', but may hold only letters, digits and _./-"
  [[ "$retries" =~ ^[0-9]+$ ]] ||
    stop "--retries is '$retries', but must be a whole number, such as 20"
  [[ "$poll_seconds" =~ ^[0-9]*\.?[0-9]+$ ]] ||
    stop "--poll-seconds is '$poll_seconds', but must be a number, such as 30"
  check_count --num-slices "$num_slices"
  "$queued" || ((num_slices == 1)) ||
    stop "--num-slices is $num_slices, but several slices come from a queued" \
      'resource alone: add --queued'
  "$queued" || [[ -z "$valid_until" ]] ||
    stop '--valid-until is about how long a queued resource waits: add --queued'
  [[ "$valid_until" =~ ^(([0-9]+[smhd])*|[0-9]{4}-.*:.*)$ ]] ||
    stop "--valid-until is '$valid_until', but must be a time to wait, such as" \
      '6h, or until when, such as 2030-01-31T18:00:00Z'
  if [[ "$workdir" != /* && "$workdir" != gs://* ]]; then
    ! "$pod" ||
      stop "--workdir is '$workdir', but all workers of a pod write one run:" \
        'give gs://bucket/folder, or the absolute path of a folder that they' \
        'share (--setup can mount it)'
    ((retries == 0)) ||
      stop "--workdir is '$workdir', on the disk of a TPU VM, which --retries" \
        'loses: give gs://bucket/folder, or the absolute path of a folder' \
        'that --setup mounts'
  fi
  ! "$pod" || trainer+=(--distributed)
  if [[ -z "$version" ]]; then
    case "$accelerator_type" in
      v5lite*) version=v2-alpha-tpuv5-lite ;;
      v5p*) version=v2-alpha-tpuv5 ;;
      v6e*) version=v2-alpha-tpuv6e ;;
      *) version=tpu-ubuntu2204-base ;;
    esac
  fi
  collect="${collect:-$ROOT/runs/$name}"
  "$dry_run" || command -v gcloud > /dev/null ||
    stop 'gcloud is not on the PATH; install the Google Cloud CLI'

  find_python
  exec "$PYTHON_FOUND" "$ROOT/launch/_tpu.py" root="$ROOT" \
    script="$(basename "$0")" name="$name" zone="$zone" project="$project" \
    accelerator_type="$accelerator_type" version="$version" \
    num_slices="$num_slices" queued="$queued" spot="$spot" \
    valid_until="$valid_until" retries="$retries" \
    poll_seconds="$poll_seconds" setup="$setup" workdir="$workdir" \
    collect="$collect" pod="$pod" stop="$stop" delete="$delete" \
    dry_run="$dry_run" -- "${trainer[@]}"
}
