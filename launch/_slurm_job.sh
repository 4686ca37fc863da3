#!/usr/bin/env bash
# The batch job that slurm.sh submits. Its arguments are the command of the
# trainer: it runs once per GPU, and the job is queued again when its time is up
# or it is preempted. Slurm runs a copy of this file, so it sources nothing.
set -uo pipefail

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --gpu-bind=none --label \
  --kill-on-bad-exit=0 --wait=300 "$@" &
srun=$!

# Slurm signals this script alone when time runs out (--signal=B:USR1@...). The
# processes are told by scancel: srun itself would turn SIGTERM into SIGKILL.
interrupted=true
trap 'interrupted=true
  scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Preemption and scancel signal the processes, too: let them save.
trap 'interrupted=true' TERM

while "$interrupted"; do
  interrupted=false
  wait "$srun"
  status=$?
done
# The trainer's: stopped by a signal. What Slurm cancels, or preempts at once, no
# longer runs for it, and the latter it queues again. Of a job that has saved
# within a time of grace it thinks that it has failed.
if ((status == 42)) && [[ "$(
  squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" == RUNNING ]]; then
  echo "out of time or preempted; queueing job $SLURM_JOB_ID again, which" \
    'resumes'
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
