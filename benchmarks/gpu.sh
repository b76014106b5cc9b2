#!/usr/bin/env bash
# benchmarks/gpu.sh [PART...]: everything that waits for a GPU, in at most 45 minutes on one H100.
#
#   correctness  attention paths on the GPU against float64, one encoding for each kind of hook      8 minutes
#   training     training steps at the size of gpt2, against the rate of matrix products there       4 minutes
#   scoring      one text of 65,536 tokens with every encoding                                       6 minutes
#   together     one run on all GPUs of the machine, DDP and FSDP2 through NCCL; *not run* so far     5 minutes
#   study        pe-bench reproduce gpu: seven encodings, 30M parameters, 10^8 tokens             22 minutes
#
# With more than one GPU, `together` compares their losses with those of one; it is skipped with fewer.
#
# The minutes are limits, at which a part is stopped. Without PART it does those that are not done; a part that is
# named is done again. A study goes on where it was stopped. All results are in results/gpu, or in $GPU_RESULTS.
# GPU_TEXT=FOLDER is the study's text, better 100 MB or more. GPU_TOY=1 does all parts at a toy size on a CPU.
set -uo pipefail
results=$(realpath -m "${GPU_RESULTS:-results/gpu}")
text=${GPU_TEXT:+$(realpath -m "$GPU_TEXT")}
cd "$(dirname "$0")/.."
python=$(command -v .venv/bin/python || command -v python3)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

hooks=(rope alibi t5 fire kerple_log fox local_global sink sliding_window lm_infinite shaw cope stick_breaking key_offset)
timed=(nope rope alibi t5 fire kerple_log fox local_global)
if [ "${GPU_TOY:-}" ]; then
    correctness=(benchmarks/gpu_paths.py rope fire --device cpu --lengths 40)
    training=(benchmarks/steps.py rope --lengths 32 --repeats 1 device=cpu threads=1)
    scoring=(-m pe_bench speed rope fox --lengths 64 --repeats 1 device=cpu threads=1)
    study=(-m pe_bench reproduce gpu --quick threads=1)
else
    correctness=(benchmarks/gpu_paths.py "${hooks[@]}" --device cuda --lengths 300)
    training=(benchmarks/steps.py "${timed[@]}" --lengths 1024 device=cuda model=gpt2
        train.batch_tokens=16384 precision=bfloat16)
    scoring=(-m pe_bench speed --lengths 65536 --repeats 1 device=cuda model=small)
    study=(-m pe_bench reproduce gpu device=cuda)
fi
together=(benchmarks/several_gpus.py --processes "${GPU_TOY:+2}")
[ "${GPU_TOY:-}" ] && together+=(device=cpu threads=1 train.steps=3 train.batch_tokens=256 eval.targets=2)
training+=(--output "$results/training.csv")
scoring+=(results_dir="$results")
study+=(--results-dir "$results/study" ${text:+--text "$text"})

do_part() { # name, minutes
    local -n arguments=$1
    echo "$1: at most $2 minutes; output in $results/$1.txt"
    rm -f "$results/$1.done"
    timeout --signal=INT --kill-after=60 "$2m" "$python" "${arguments[@]}" 2>&1 | tee "$results/$1.txt"
    local code=${PIPESTATUS[0]}
    if [ "$code" = 0 ]; then
        touch "$results/$1.done"
        return 0
    fi
    echo "gpu.sh: $1 ended with exit code $code (124: at its limit of $2 minutes); again: benchmarks/gpu.sh $1" >&2
    return 1
}

declare -A minutes=([correctness]=8 [training]=4 [scoring]=6 [together]=5 [study]=22)
for part in "$@"; do
    [ "${minutes[$part]:-}" ] || { echo "gpu.sh: no part $part: correctness, training, scoring, together, study" >&2; exit 2; }
done
[ -z "$text" ] || [ -d "$text" ] || { echo "gpu.sh: GPU_TEXT=$GPU_TEXT is not a folder: name one with texts" >&2; exit 2; }
mkdir -p "$results"
failed=0
for part in correctness training scoring together study; do
    if [ $# -gt 0 ]; then
        case " $* " in *" $part "*) ;; *) continue ;; esac
    elif [ -e "$results/$part.done" ]; then
        echo "$part: done already"
        continue
    fi
    do_part "$part" "${minutes[$part]}" || failed=1
done
exit $failed
