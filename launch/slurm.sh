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
  --config CONFIG      config file and its arguments
  --workdir DIR        folder of the run
  --mode MODE          train (default), evaluate, export or doctor
  --dry-run            print the commands without running them
  --help               print this

SBATCH_... variables set other options of sbatch, such as SBATCH_PARTITION and
SBATCH_TIMELIMIT. The trainer saves 600 seconds before the limit, so give at
least an hour. Example:

  SBATCH_TIMELIMIT=24:00:00 bash launch/slurm.sh --nodes 2 \
      --config configs/plan_path.py:size=8b --workdir /shared/runs/x \
      -- --config.seed=1
EOF
}

nodes=1 gpus_per_node=8 cpus_per_task=8
parse_trainer_options 'nodes gpus-per-node cpus-per-task' '' "$@"
resolve_workdir
check_positive --nodes "$nodes"
check_positive --gpus-per-node "$gpus_per_node"
check_positive --cpus-per-task "$cpus_per_task"
check_shared /tmp /var/tmp /dev/shm
"$dry_run" || command -v sbatch > /dev/null ||
  stop 'sbatch is not on the PATH; run this on a login node of the cluster'

ensure_installed gpu
check_trainer
trainer_command cuda,cpu
submit=(sbatch --parsable --job-name="atgrpo_jax-$(basename "$workdir")"
  --nodes="$nodes" --ntasks=$((nodes * gpus_per_node))
  --ntasks-per-node="$gpus_per_node" --gpus-per-node="$gpus_per_node"
  --cpus-per-task="$cpus_per_task" --signal=B:USR1@600 --requeue
  --open-mode=append --output="$logs/slurm-%j.log" --chdir="$ROOT")
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
