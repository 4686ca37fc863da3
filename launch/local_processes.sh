#!/usr/bin/env bash
# Runs one training as several processes of this machine; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/local_processes.sh --config CONFIG --workdir DIR
                                      [OPTION ...] [-- CONFIG OVERRIDE ...]

Runs one training (or evaluation) as several processes on this machine, which
find each other as those of a pod or of several nodes do: to test and debug
that path. On the CPU, unless JAX_PLATFORMS=cuda,cpu, which gives each process
one NVIDIA card. One process that sees all cards is what launch/gpu.sh runs.

Process 0 writes to the terminal, process I to DIR.logs/process-I.log. Ctrl-C,
SIGTERM and SIGHUP are passed on to all processes, once. When one fails, the
others end by themselves, and are killed after 10 seconds. Exits with the status
of the one that failed; with 42 where a signal stopped them.

  --processes N     how many processes (default 2)
  --config CONFIG   config file of the checkout and its arguments
  --workdir DIR     where the run is kept
  --mode MODE       train (default), evaluate, export or doctor
  --dry-run         print the commands and run none
  --help            print this

What follows -- goes to the trainer, for instance:

  bash launch/local_processes.sh --config configs/plan_path.py:size=nano,debug \
      --workdir runs/x -- --config.seed=1
EOF
}

# Exit statuses of a trainer: a signal stopped it, another process is gone.
STOPPED=42
BEREFT=3
# Seconds that the others have to say why they end, until they are killed.
GRACE=10

processes=2
parse_options processes '' "$@"
check_count --processes "$processes"
absolute_workdir "$PWD"  # The trainers start in the checkout.
platforms="${JAX_PLATFORMS:-cpu}"
extra=''
if [[ "$platforms" == *cuda* ]]; then
  extra=gpu
elif [[ "$workdir" == gs://* ]]; then
  extra=gcs
fi
ensure_installed "$extra"
trainer_command cpu
port="$("$PYTHON_FOUND" -c '
import socket
with socket.socket() as s:
  s.bind(("127.0.0.1", 0))
  print(s.getsockname()[1])
')"

# process_command I: sets `process`, the command of process I.
process_command() {
  # Where all see all cards, process I takes card I.
  process=(env JAX_LOCAL_DEVICE_IDS="$1" "${command[@]:1}" --distributed
    --coordinator_address=127.0.0.1:"$port" --num_processes="$processes"
    --process_id="$1")
}

if "$dry_run"; then
  show cd "$ROOT"
  show mkdir -p "$logs"
  for ((i = processes - 1; i >= 0; i--)); do
    process_command "$i"
    if ((i > 0)); then
      printf '%s > %q 2>&1 &\n' "$(show "${process[@]}")" \
        "$logs/process-$i.log"
    else
      show "${process[@]}"
    fi
  done
  exit
fi

pids=() # Of the processes; empty for those that have ended.
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
# A process group for each: Ctrl-C signals the group of the terminal, and a
# second signal, ours, would kill where the first asks to stop.
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

# The first failure's, but for 3 if there is another; else 42 if a signal stopped
# a process, else 0.
status=0
deadline=''
num_running="$processes"
while ((num_running > 0)); do
  sleep 0.2 || true # Ctrl-C ends it, too.
  for ((i = 0; i < processes; i++)); do
    if [[ -z "${pids[i]}" ]] || kill -0 "${pids[i]}" 2> /dev/null; then
      continue
    fi
    ended=0
    wait "${pids[i]}" || ended=$?
    pids[i]=''
    num_running=$((num_running - 1))
    ((ended != 0)) || continue
    if ((ended == STOPPED)); then
      if ((status == 0)); then status=$STOPPED; fi
    else
      if ((status == 0 || status == STOPPED || status == BEREFT)); then
        status=$ended
      fi
      if ((i > 0 && ended != BEREFT)); then
        tail -n 20 "$logs/process-$i.log" >&2
      fi
      say "process $i failed with exit status $ended" >&2
      deadline="${deadline:-$((SECONDS + GRACE))}"
    fi
  done
  if [[ -n "$deadline" ]] && ((SECONDS >= deadline)); then
    signal_all KILL
  fi
done
exit "$status"
