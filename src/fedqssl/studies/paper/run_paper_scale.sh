#!/usr/bin/env bash
# The paper's scale on one machine with GPUs: starts the run, or resumes it where it was interrupted. Start it again after anything.
#
#   run_paper_scale.sh [FOLDER] [KEY=VALUE ...]
#
#   PRESET    cifar10-paper (default) or cifar100-paper
#   DEVICE    cuda (default: all GPUs), cuda:N, auto, or cpu (weeks)
#   WORKERS   processes on each GPU (3): one computes while another draws its random numbers on the CPU
set -euo pipefail

preset=${PRESET:-cifar10-paper}
device=${DEVICE:-cuda}
workers=${WORKERS:-3}
folder=${1:-runs/$preset}
[ $# -gt 0 ] && shift

if [ -f "$folder/result.json" ]; then
    echo "$folder is finished; read $folder/summary.md"
elif [ -f "$folder/config.toml" ]; then
    [ $# -eq 0 ] || { echo "$folder has begun: it is resumed with its own settings; leave out $*" >&2; exit 2; }
    exec fedqssl run --resume "$folder"
else
    exec fedqssl run "$preset" "device=$device" "workers_per_gpu=$workers" "$@" --out "$folder"
fi
