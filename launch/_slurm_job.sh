#!/usr/bin/env bash
# The batch job that slurm.sh submits. Its arguments are the command of the
# trainer, which runs once per GPU. The job queues itself again when its time is
# up or it is preempted. Slurm runs a copy of this file, so it sources nothing.
set -uo pipefail

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --gpu-bind=none --label \
  --kill-on-bad-exit=0 --wait=300 "$@" &
srun=$!

# When time runs out, Slurm signals this script alone (--signal=B:USR1@...).
# scancel passes it on; srun would turn SIGTERM into SIGKILL.
interrupted=true signalled=false
trap 'interrupted=true signalled=true
  scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Preemption and scancel signal the processes as well, which then save.
trap 'interrupted=true signalled=true' TERM

while "$interrupted"; do
  interrupted=false
  wait "$srun"
  status=$?
done
# 42: a signal stopped the trainers. While they start they do not end together,
# and the later ones lose their peers, which is 3 or 134. Slurm itself queues a
# job again that it preempts without grace, but takes a job that saved in time
# for a failed one. A cancelled job is no longer RUNNING. -1: bash 5.2 has lost
# the status, because srun ended at the moment of the signal.
if "$signalled" && [[ "$status" =~ ^(-1|3|134)$ ]]; then status=42; fi
if ((status == 42)) && [[ "$(
  squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" == RUNNING ]]; then
  echo "out of time or preempted; queueing job $SLURM_JOB_ID again, to resume"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
