#!/usr/bin/env bash
# Submits a run to SLURM, on the GPUs of one or more nodes; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/slurm.sh --config CONFIG --workdir DIR [OPTION ...]
                            [-- CONFIG OVERRIDE ...]

Makes .venv in the checkout, installs atgrpo_jax with its gpu extra (skipped
where that is up to date) and submits a batch job with sbatch: one process per
GPU, because jax reads the variables of SLURM so that process I of a node takes
the node's GPU I. The checkout and DIR must be on a file system that all nodes
share. The log is DIR.logs/slurm-JOB.log, each line with its process's number.

The job survives preemption and its time limit: the trainer saves, and the job
is queued again, to resume. SLURM does that where it preempts without a time of
grace, else the job itself. A preempted trainer has as long as the cluster
gives it, KillWait (30 seconds, mostly) or GraceTime: what it plays is dropped,
and an update is finished. scancel ends the job for good.

  --nodes N            how many nodes (default 1)
  --gpus-per-node N    GPUs, and so processes, on each (default 8)
  --cpus-per-task N    CPU cores for each process (default 8)
  --time LIMIT         time limit, as HOURS:MM:SS or DAYS-HH:MM:SS (default:
                       the partition's)
  --grace SECONDS      how long before the limit the trainer saves (default
                       600); longer than a step and a save take
  --partition NAME     partition (default: the cluster's)
  --account NAME       account (default: yours)
  --config CONFIG      config file of the checkout and its arguments
  --workdir DIR        where the run is kept
  --mode MODE          train (default), evaluate, export or doctor
  --dry-run            print the commands and run none
  --help               print this

Set other options of sbatch by its SBATCH_... variables. What follows -- goes
to the trainer, for instance:

  bash launch/slurm.sh --nodes 2 --time 24:00:00 \
      --config configs/plan_path.py:size=8b --workdir /shared/runs/x \
      -- --config.seed=1
EOF
}

nodes=1
gpus_per_node=8
cpus_per_task=8
time=''
grace=600
partition=''
account=''
parse_options \
  'nodes gpus-per-node cpus-per-task time grace partition account' '' "$@"
absolute_workdir "$PWD"  # The trainers start in the checkout.
check_count --nodes "$nodes"
check_count --gpus-per-node "$gpus_per_node"
check_count --cpus-per-task "$cpus_per_task"
check_count --grace "$grace"
if [[ -n "$time" ]]; then
  [[ "$time" =~ ^(([0-9]+)-)?([0-9]+):([0-5][0-9]):([0-5][0-9])$ ]] ||
    stop "--time is '$time', but must be HOURS:MM:SS or DAYS-HH:MM:SS, such" \
      'as 24:00:00'
  seconds=$((((10#${BASH_REMATCH[2]:-0} * 24 + 10#${BASH_REMATCH[3]}) * 60 +
    10#${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}))
  # A job that is told to save as it starts would queue itself for ever.
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

# sbatch does not make the folder of the log.
run mkdir -p "$logs"
if "$dry_run"; then
  show "${submit[@]}"
  exit
fi
job="$("${submit[@]}")" || stop "sbatch refused the job; its reason is above"
job="${job%%;*}" # The name of the cluster may follow.
say "submitted job $job; to watch it: tail -F $logs/slurm-$job.log;" \
  "to end it: scancel $job"
