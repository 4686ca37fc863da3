#!/usr/bin/env bash
# Submits a run to SLURM, on the GPUs of one or more nodes; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/slurm.sh --config CONFIG --workdir DIR [OPTION ...]
                            [-- CONFIG OVERRIDE ...]

Installs atgrpo_jax with its gpu extra into .venv and submits a batch job with
one process per GPU. All nodes must share the file system of the checkout and
of DIR. The log is DIR.logs/slurm-JOB.log; its lines begin with the number of
the process.

The job survives preemption and its time limit: the trainer saves, and the job
is queued again and resumes. A preempted trainer has the cluster's KillWait
(usually 30 seconds) or GraceTime to drop its rollout, finish the update and
save. scancel ends the job for good.

  --nodes N            number of nodes (default 1)
  --gpus-per-node N    GPUs, and so processes, of each node (default 8)
  --cpus-per-task N    CPU cores of each process (default 8)
  --time LIMIT         time limit, as HOURS:MM:SS or DAYS-HH:MM:SS (default:
                       the partition's)
  --grace SECONDS      how long before the limit the trainer saves (default
                       600); must exceed a step and a save
  --partition NAME     partition (default: the cluster's)
  --account NAME       account (default: yours)
  --config CONFIG      config file and its arguments
  --workdir DIR        folder of the run
  --mode MODE          train (default), evaluate, export or doctor
  --dry-run            print the commands without running them
  --help               print this

SBATCH_... variables set other options of sbatch. Example:

  bash launch/slurm.sh --nodes 2 --time 24:00:00 \
      --config configs/plan_path.py:size=8b --workdir /shared/runs/x \
      -- --config.seed=1
EOF
}

nodes=1 gpus_per_node=8 cpus_per_task=8 time='' grace=600 partition='' account=''
parse_trainer_options \
  'nodes gpus-per-node cpus-per-task time grace partition account' '' "$@"
resolve_workdir
check_positive --nodes "$nodes"
check_positive --gpus-per-node "$gpus_per_node"
check_positive --cpus-per-task "$cpus_per_task"
check_positive --grace "$grace"
if [[ -n "$time" ]]; then
  [[ "$time" =~ ^(([0-9]+)-)?([0-9]+):([0-5][0-9]):([0-5][0-9])$ ]] ||
    stop "--time is '$time', but must be HOURS:MM:SS or DAYS-HH:MM:SS, such" \
      'as 24:00:00'
  seconds=$((((10#${BASH_REMATCH[2]:-0} * 24 + 10#${BASH_REMATCH[3]}) * 60 +
    10#${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}))
  # A job that must save as soon as it starts would queue itself for ever.
  ((seconds >= 2 * grace)) ||
    stop "--time $time is less than twice --grace, $grace seconds; give more" \
      'time or a shorter --grace'
fi
"$dry_run" || command -v sbatch > /dev/null ||
  stop 'sbatch is not on the PATH; run this on a login node of the cluster'

ensure_installed gpu
trainer_command cuda,cpu
submit=(sbatch --parsable --job-name="atgrpo_jax-$(basename "$workdir")"
  --nodes="$nodes" --ntasks=$((nodes * gpus_per_node))
  --ntasks-per-node="$gpus_per_node" --gpus-per-node="$gpus_per_node"
  --cpus-per-task="$cpus_per_task" --signal=B:USR1@"$grace" --requeue
  --open-mode=append --output="$logs/slurm-%j.log" --chdir="$ROOT")
[[ -z "$time" ]] || submit+=(--time="$time")
[[ -z "$partition" ]] || submit+=(--partition="$partition")
[[ -z "$account" ]] || submit+=(--account="$account")
submit+=("$ROOT/launch/_slurm_job.sh" "${command[@]}" --distributed)

run mkdir -p "$logs"  # sbatch does not make the folder of the log.
if "$dry_run"; then
  show "${submit[@]}"
  exit
fi
job="$("${submit[@]}")" || stop 'sbatch refused the job; its reason is above'
job="${job%%;*}"  # The name of the cluster may follow.
say "submitted job $job; to watch it: tail -F $logs/slurm-$job.log;" \
  "to end it: scancel $job"
