#!/usr/bin/env bash
# Runs one training as several processes of this machine; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/local_processes.sh --config CONFIG --workdir DIR
                                      [OPTION ...] [-- CONFIG OVERRIDE ...]

Runs one training or evaluation as several processes of this machine, connected
as on a pod or on several nodes, to test and debug that path. It runs on the
CPU; with JAX_PLATFORMS=cuda,cpu each process takes one GPU.

Process 0 writes to the terminal, process I to DIR.logs/process-I.log. Ctrl-C,
SIGTERM and SIGHUP are passed on once. After a failure the other processes have
10 seconds to end. The exit status is that of the process that failed, or 42 if
a signal stopped them.

  --processes N     number of processes (default 2)
  --config CONFIG   config file and its arguments
  --workdir DIR     folder of the run
  --mode MODE       train (default), evaluate, export or doctor
  --dry-run         print the commands without running them
  --help            print this

Example:

  bash launch/local_processes.sh --config configs/plan_path.py:size=nano,debug \
      --workdir runs/x -- --config.seed=1
EOF
}

# Exit statuses of a trainer.
STOPPED=42         # A signal stopped it.
PEER_LOST='3|134'  # Another process was lost; jax aborts with 134.
GRACE_PERIOD=10    # Seconds until the remaining processes are killed.

processes=2
parse_trainer_options processes '' "$@"
check_positive --processes "$processes"
resolve_workdir
extra=''
if [[ "$workdir" == gs://* ]]; then extra=gcs; fi
if [[ "${JAX_PLATFORMS:-cpu}" == *cuda* ]]; then extra=gpu; fi
ensure_installed "$extra"
trainer_command cpu
port="$("$PYTHON_FOUND" -c '
import socket
with socket.socket() as s:
  s.bind(("127.0.0.1", 0))
  print(s.getsockname()[1])
')"

# process_command I: sets `process`, the command of process I, which takes GPU I.
process_command() {
  process=(env JAX_LOCAL_DEVICE_IDS="$1" "${command[@]:1}" --distributed
    --coordinator_address=127.0.0.1:"$port" --num_processes="$processes"
    --process_id="$1")
}

if "$dry_run"; then
  show cd "$ROOT"
  show mkdir -p "$logs"
  for ((i = processes - 1; i > 0; i--)); do
    process_command "$i"
    printf '%s > %q 2>&1 &\n' "$(show "${process[@]}")" "$logs/process-$i.log"
  done
  process_command 0
  show "${process[@]}"
  exit
fi

pids=()  # Empty for a process that has ended.
signal_all() {
  local i
  for ((i = 0; i < processes; i++)); do
    [[ -z "${pids[i]:-}" ]] || kill -s "$1" "${pids[i]}" 2> /dev/null || true
  done
}
trap 'signal_all INT' INT
trap 'signal_all TERM' TERM HUP

cd "$ROOT"
mkdir -p "$logs"
say "running $processes processes; logs: $logs/process-*.log"
# Each gets a process group. In ours, Ctrl-C would signal it directly, and the
# signal that we pass on would be its second one, which kills.
set -m
for ((i = 0; i < processes; i++)); do
  process_command "$i"
  if ((i == 0)); then
    "${process[@]}" < /dev/null &
  else
    "${process[@]}" < /dev/null > "$logs/process-$i.log" 2>&1 &
  fi
  pids+=("$!")
done
set +m

# rank STATUS: a failure outranks a stop, which outranks a lost process.
rank() {
  if [[ "$1" == 0 ]]; then echo 0
  elif [[ "$1" =~ ^($PEER_LOST)$ ]]; then echo 1
  elif [[ "$1" == "$STOPPED" ]]; then echo 2
  else echo 3; fi
}

status=0
deadline=''
running="$processes"
while ((running > 0)); do
  sleep 0.2 || true  # Ctrl-C ends it early.
  for ((i = 0; i < processes; i++)); do
    if [[ -z "${pids[i]}" ]] || kill -0 "${pids[i]}" 2> /dev/null; then
      continue
    fi
    ended=0
    wait "${pids[i]}" || ended=$?
    pids[i]=''
    running=$((running - 1))
    if (($(rank "$ended") > $(rank "$status"))); then status=$ended; fi
    if ((ended == 0 || ended == STOPPED)); then continue; fi
    if ((i > 0)) && [[ ! "$ended" =~ ^($PEER_LOST)$ ]]; then
      tail -n 20 "$logs/process-$i.log" >&2
    fi
    say "process $i failed with exit status $ended" >&2
    deadline="${deadline:-$((SECONDS + GRACE_PERIOD))}"
  done
  if [[ -n "$deadline" ]] && ((SECONDS >= deadline)); then
    signal_all KILL
  fi
done
exit "$status"
