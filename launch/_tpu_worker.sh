#!/usr/bin/env bash
# What tpu_vm.sh and tpu_pod.sh do on the TPU VM itself, on each of its workers.
#
#   install              make .venv hold this checkout with the tpu extra
#   setup COMMAND        run a shell command in the checkout
#   mark DIR TOKEN       write TOKEN beside DIR, on one worker
#   check DIR TOKEN KIND find it there, on all workers; if KIND is `outlives`,
#                        on no disk of the TPU VM
#   start DIR ARG ...    start the trainer in the background, with a log
#   state DIR ARG ...    if a trainer runs: whether it is this one
#   follow               print its log until it ends
#   result               print its exit status, and what it said if it failed
#   stop                 ask it to save and stop
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

# What is known of the last trainer: log, pid, command and, once it has ended,
# status; and whether it was asked to stop. The process `pid` waits for the
# trainer and writes its status.
RUN="$HOME/atgrpo_jax.run"

# The token of the Hugging Face hub is in no command, so that no log has it.
TOKEN="$HOME/atgrpo_jax.token"
if [[ -e "$TOKEN" ]]; then
  chmod 600 "$TOKEN"
  HF_TOKEN="$(cat "$TOKEN")"
  export HF_TOKEN
fi

say() { printf '%s: %s\n' "$(hostname)" "$*"; }

running() {
  # After a restart of the TPU VM another process may have that number.
  [[ -e "$RUN/pid" && ! -e "$RUN/status" ]] &&
    grep -qsF "$RUN/status" "/proc/$(cat "$RUN/pid")/cmdline"
}

install() {
  # Cloud TPU's images come with Python 3.10.
  if ! (find_python) 2> /dev/null; then
    say 'getting Python 3.12'
    python3 -m pip install --quiet --user uv
    "$HOME/.local/bin/uv" python install --quiet 3.12
    PYTHON="$("$HOME/.local/bin/uv" python find 3.12)"
  fi
  ensure_installed tpu
}

mark() {
  mkdir -p "$1.logs"
  echo "$2" > "$1.logs/shared"
}

check() {
  [[ "$(cat "$1.logs/shared" 2> /dev/null)" == "$2" ]] ||
    stop "--workdir $1 is not the same folder on all workers; give one that" \
      'they share, which --setup can mount'
  if [[ "$3" == outlives ]]; then
    [[ "$(stat --format=%d "$1.logs")" != "$(stat --format=%d /)" &&
      "$(stat --file-system --format=%T "$1.logs")" != tmpfs ]] ||
      stop "--workdir $1 is on the TPU VM's own disk, which --retries loses;" \
        'give a folder that --setup mounts'
  fi
}

start() {
  # gcloud repeats a command whose connection broke.
  if running; then return; fi
  if [[ -n "${HF_HOME:-}" ]] && ! mkdir -p "$HF_HOME"; then
    stop "HF_HOME is '$HF_HOME', which cannot be made here; unset it, or give" \
      'a folder of the workers'
  fi
  workdir="$1"
  shift
  absolute_workdir "$HOME"
  trainer=("$@")
  trainer_command tpu,cpu
  mkdir -p "$RUN" "$logs"
  rm -f "$RUN/status" "$RUN/asked"
  cd "$ROOT"
  # In a session of its own, which a broken connection does not end. A TPU VM
  # that is taken away sends SIGTERM and SIGHUP to every process.
  # shellcheck disable=SC2016  # To be expanded there.
  setsid bash -c 'trap "" HUP; trap : TERM
    "${@:4}" > "$2" 2>&1; status=$?; cp "$2" "$3"; echo "$status" > "$1"' \
    supervisor "$RUN/status" "$RUN/log" \
    "$logs/$(date -u +%Y-%m-%dT%H-%M-%SZ)-$(hostname).log" \
    "${command[@]}" > /dev/null 2>&1 < /dev/null &
  echo "$!" > "$RUN/pid"
}

result() {
  local i status asked=''
  # A process ends within half a minute of its peers.
  for ((i = 0; i < 60; i++)); do
    running || break
    sleep 1
  done
  if [[ ! -e "$RUN/status" ]]; then
    say 'the trainer is gone, without an exit status'
    return
  fi
  status="$(cat "$RUN/status")"
  [[ "$status" == 0 || "$status" == 42 ]] || tail -n 20 "$RUN/log"
  if [[ -e "$RUN/asked" ]]; then asked=', as asked'; fi
  say "exit status $status$asked"
}

action="$1"
shift
case "$action" in
  install) install ;;
  setup)
    cd "$ROOT"
    bash -c "$1"
    ;;
  mark) mark "$@" ;;
  check) check "$@" ;;
  start)
    start "$@"
    show "$@" > "$RUN/command"
    ;;
  state)
    if ! running; then
      exit
    elif [[ "$(show "$@")" == "$(cat "$RUN/command")" ]]; then
      echo this
    else
      echo another
    fi
    ;;
  follow) tail -n 1000 -F --pid="$(cat "$RUN/pid")" "$RUN/log" ;;
  result) result ;;
  stop)
    if running; then
      touch "$RUN/asked"
      pkill -TERM -P "$(cat "$RUN/pid")"
      say 'asked the trainer to save and stop'
    else
      say 'no trainer is running'
    fi
    ;;
  *) stop "unknown action '$action'" ;;
esac
