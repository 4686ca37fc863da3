# Sourced by tpu_vm.sh and tpu_pod.sh: creates a TPU VM or takes one that is
# there, and trains on it. What happens on the VM itself is in _tpu_worker.sh.
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
  --setup COMMAND          shell command for each worker, in the checkout, after
                           the installation; such as one that mounts a folder
                           or downloads a model
  --config CONFIG          config file of the checkout and its arguments
  --workdir DIR            where the run is kept on the TPU VM
  --collect DIR            folder of this machine to copy the workdir and the
                           log into (default runs/NAME in the checkout)
  --mode MODE              train (default), evaluate or export
  --stop                   ask a run in progress to save and stop; do no more
  --delete                 delete the TPU VM once a run that has ended well is
                           collected
  --dry-run                print the commands and run none
  --help                   print this

Ctrl-C ends the watching, not the run. If a step fails, the TPU VM is left as
it is, and so costs money. Folders named Qwen... in models/ are not copied to
the TPU VM, being large: download them there, as in
  --setup '.venv/bin/hf download Qwen/Qwen3-1.7B --local-dir models/Qwen3-1.7B'

EOF
}

TPU=(gcloud compute tpus tpu-vm)
WORKER='bash atgrpo_jax/launch/_tpu_worker.sh'

# on_workers WORKERS COMMAND: a shell command on worker 0 or on all.
on_workers() {
  run "${TPU[@]}" ssh "$name" "${where[@]}" --quiet --worker="$1" \
    --command="$2"
}

# step DOING COMMAND ...: a failure stops with one sentence.
step() {
  local doing="$1"
  shift
  "$dry_run" || say "$doing"
  "$@" || stop "$doing failed, for the reason above; $left"
}

# Sets `state`, empty where there is no such TPU VM, and `num_workers`.
look_up() {
  local found errors="$ROOT/.cache/gcloud.log"
  state='' num_workers=0
  if found="$("${describe[@]}" 2> "$errors")"; then
    read -r state num_workers <<< "$found"
  elif ! grep -q NOT_FOUND "$errors"; then
    stop "gcloud cannot look up the TPU VM $name: $(tr '\n' ' ' < "$errors")"
  fi
}

create_or_reuse() {
  look_up
  if [[ -n "$state" ]]; then
    say "using the TPU VM $name, which is there"
  else
    [[ -n "$accelerator_type" ]] ||
      stop "there is no TPU VM $name in $zone; give --accelerator-type, such" \
        'as v5litepod-8, to create it'
    step "creating the TPU VM $name" "${create[@]}"
    look_up
  fi
  left="the TPU VM $name is left as it is: run this again to go on, or delete \
it with: $(show "${delete_vm[@]}")"
  [[ "$state" == READY ]] ||
    stop "the TPU VM $name is ${state:-gone}, not READY; wait until it is, or" \
      "delete it with: $(show "${delete_vm[@]}")"
  "$pod" || ((num_workers == 1)) ||
    stop "the TPU VM $name has $num_workers workers; use launch/tpu_pod.sh"
}

copy_and_install() {
  local archive="$ROOT/.cache/atgrpo_jax.tar.gz" unpack
  step 'packing the checkout' run tar -czf "$archive" -C "$ROOT" \
    --exclude=./.git --exclude=./.venv --exclude=./.cache --exclude=./runs \
    --exclude='./models/Qwen*' --exclude=__pycache__ .
  step 'copying the checkout' run "${TPU[@]}" scp "$archive" \
    "$name:atgrpo_jax.tar.gz" "${where[@]}" --quiet --worker=all
  # A module that is gone here must go there.
  unpack="mkdir -p atgrpo_jax && find atgrpo_jax -mindepth 1 -maxdepth 1 \
! -name .venv ! -name .cache ! -name models ! -name runs -exec rm -rf {} + && \
tar -xzf atgrpo_jax.tar.gz -C atgrpo_jax"
  step 'installing' on_workers all "$unpack && $WORKER install"
  [[ -z "$setup" ]] ||
    step 'running --setup' on_workers all "cd atgrpo_jax || exit; $setup"
}

# Sets `status`: the first failure's, else 42 if one was stopped, else 0.
get_status() {
  local results line found=0
  say 'collecting exit statuses'
  results="$(on_workers all "$WORKER result")" ||
    stop "the workers of $name do not answer; $left"
  printf '%s\n' "$results"
  status=0
  while read -r line; do
    [[ "$line" =~ ": exit status "([0-9]+)$ ]] || continue
    found=$((found + 1))
    if ((BASH_REMATCH[1] != 0 && (status == 0 || status == 42))); then
      status="${BASH_REMATCH[1]}"
    fi
  done <<< "$results"
  ((found == num_workers)) ||
    stop "only $found of the $num_workers workers of $name told how they" \
      "ended; $left"
}

interrupted() {
  printf '\n' >&2
  say "interrupted; $left" >&2
  exit 130
}

# run_on_tpu POD ARGUMENT ...: all of it; POD is true for several workers.
run_on_tpu() {
  local remote in_progress=''
  pod="$1"
  name='' zone='' project='' accelerator_type='' version='' setup='' collect=''
  spot=false stop=false delete=false
  parse_options \
    'name zone project accelerator-type version setup collect' \
    'spot stop delete' "${@:2}"
  [[ -n "$name" ]] || stop '--name is missing; give the name of the TPU VM'
  [[ -n "$zone" ]] || stop '--zone is missing; give one such as us-west4-a'
  [[ "$config" != /* ]] ||
    stop "--config is '$config', but must be a file of the checkout, which is" \
      'what is copied to the TPU VM'
  [[ "$workdir" =~ ^[A-Za-z0-9_./-]+$ ]] ||
    stop "--workdir is '$workdir', but may hold only letters, digits and _./-"
  if "$pod"; then
    [[ "$workdir" == /* ]] ||
      stop "--workdir is '$workdir', but all workers of a pod write one run:" \
        'give the absolute path of a folder that they share (--setup can' \
        'mount it)'
    trainer+=(--distributed)
  fi
  if [[ -z "$version" ]]; then
    case "$accelerator_type" in
      v5lite*) version=v2-alpha-tpuv5-lite ;;
      v5p*) version=v2-alpha-tpuv5 ;;
      v6e*) version=v2-alpha-tpuv6e ;;
      *) version=tpu-ubuntu2204-base ;;
    esac
  fi
  collect="${collect:-$ROOT/runs/$name}"
  where=(--zone="$zone")
  [[ -z "$project" ]] || where+=(--project="$project")
  describe=("${TPU[@]}" describe "$name" "${where[@]}"
    --format='value(state,networkEndpoints.len())')
  create=("${TPU[@]}" create "$name" "${where[@]}"
    --accelerator-type="$accelerator_type" --version="$version")
  if "$spot"; then create+=(--spot); fi
  delete_vm=("${TPU[@]}" delete "$name" "${where[@]}" --quiet)
  remote="$(show "$workdir" "${trainer[@]}")"
  left="if the TPU VM $name is there, delete it with: $(show "${delete_vm[@]}")"

  "$dry_run" || command -v gcloud > /dev/null ||
    stop 'gcloud is not on the PATH; install the Google Cloud CLI'
  if "$stop"; then
    step 'stopping the run' on_workers all "$WORKER stop"
    exit
  fi
  run mkdir -p "$ROOT/.cache" "$collect"

  # ---- Machine --------------------------------------------------------------
  trap interrupted INT
  if "$dry_run"; then
    printf '%s%s\n' "$(show "${describe[@]}")" \
      "${accelerator_type:+ || $(show "${create[@]}")}"
  else
    create_or_reuse
    in_progress="$(on_workers 0 "if test -e atgrpo_jax/launch/_tpu_worker.sh
then $WORKER state $remote; fi")" || stop "$name does not answer; $left"
  fi

  # ---- Run ------------------------------------------------------------------
  case "$in_progress" in
    this) say 'this run is in progress there; watching it' ;;
    another)
      stop "another run is in progress on $name; wait for it, stop it" \
        '(--stop) or give another --name'
      ;;
    *)
      copy_and_install
      step 'starting the run' on_workers all "$WORKER start $remote"
      ;;
  esac
  left="the run on $name goes on: run this again to watch it, add --stop to \
stop it, or delete the TPU VM with: $(show "${delete_vm[@]}")"
  step 'watching the run' on_workers 0 "$WORKER follow"

  # ---- End ------------------------------------------------------------------
  left="the TPU VM $name is left as it is; delete it with: $(
    show "${delete_vm[@]}")"
  if "$dry_run"; then
    on_workers all "$WORKER result"
    status=0
  else
    get_status
  fi
  if ((status != 0 && status != 42)); then
    say "error: the run failed with exit status $status; $left" >&2
    exit "$status"
  fi
  step 'collecting the workdir' run "${TPU[@]}" scp --recurse \
    "$name:$workdir" "$name:atgrpo_jax.run/log" "$collect" "${where[@]}" \
    --quiet --worker=0
  if "$delete" && ((status == 0)); then
    step "deleting the TPU VM $name" run "${delete_vm[@]}"
  else
    "$dry_run" || say "collected in $collect; $left"
  fi
  exit "$status"
}
